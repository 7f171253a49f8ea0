"""Converters of the operators of `ai.onnx.ml`: tree ensembles, linear models, support vectors, preparation."""
