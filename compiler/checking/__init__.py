"""Comparison of compiled code with ONNX Runtime."""
