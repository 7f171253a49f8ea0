"""Tests of operators of `ai.onnx.ml`."""
