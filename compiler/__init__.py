"""The compiler: from an ONNX model to a bundle."""
