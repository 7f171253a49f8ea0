"""Conversion of a partition's ONNX nodes to a Relax module of kernel calls.

`separable.py` finds a batch of separate items, which kernels for one item can compute in loops.
"""
