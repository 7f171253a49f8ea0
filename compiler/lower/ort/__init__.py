"""The ONNX Runtime back end, for partitions that stay ONNX."""
