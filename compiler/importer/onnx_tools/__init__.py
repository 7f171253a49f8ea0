"""ONNX's and ONNX Runtime's own tools, asked within limits."""
