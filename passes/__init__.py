"""Placement of nodes on devices by passes (`Plan → Plan`), without TVM and ONNX."""
