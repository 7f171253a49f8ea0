"""From an ONNX file to the normalised model and the graph that passes see."""
