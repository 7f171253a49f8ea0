"""Conversion of a partition's ONNX nodes to a Relax module of kernel calls.

`separable.py` finds a batch of separate items, which kernels for one item can compute in loops.
`tables.py` looks up functions between 8-bit numbers, of which there are 256.
"""
