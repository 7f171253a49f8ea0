"""Conversion of a partition's ONNX nodes to a Relax module of kernel calls."""
