"""ONNX's and ONNX Runtime's tools, used within limits on time and memory."""
