"""Converters of the operators of `ai.onnx.ml`: tree ensembles, linear models, support vectors, preparation."""

from heterocc.compiler.lower.converters.ml import encoders, linear, preparing, trees

__all__ = ["encoders", "linear", "preparing", "trees"]
