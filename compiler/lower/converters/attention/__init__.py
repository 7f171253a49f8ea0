"""Converters of attention: the standard operators and those of ONNX Runtime."""
