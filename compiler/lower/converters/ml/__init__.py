"""Converters of the operators of `ai.onnx.ml`: tree ensembles, linear models, support vectors, preparation.

`ensembles.py` reads trees into tables, and `tree_kernel.py` walks them. Such kernels are complete when they enter a
module (`compiler/lower/written.py`).
"""
