"""Placement: who runs what (`Plan → Plan`), without TVM and without ONNX."""
