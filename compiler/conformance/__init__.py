"""Conformance with ONNX.

`onnx_backend.py` is a backend in ONNX's sense; `cases.py` and `outcome.py` run ONNX's node tests on any list of
devices, and `page.py` reports them.
"""
