"""Comparison of what was compiled with ONNX Runtime."""
