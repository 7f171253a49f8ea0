"""Conformance with ONNX: its node tests on any list of devices, and the page that reports them."""
