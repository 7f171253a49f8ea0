"""Converters of ONNX Runtime's operators (domain com.microsoft), but for attention."""
