"""Partitions that stay ONNX and run in ONNX Runtime."""
