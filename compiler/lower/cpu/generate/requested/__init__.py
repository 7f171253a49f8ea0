"""Kernels that converters request as a whole, written for the vectors of a CPU.

Converters request them by name (`compiler/lower/converters/requested.py`), because their bodies depend on the vectors:
TopK, places of extremes, ranges for quantisation, products with weights in blocks, sums of columns that overlap in an
image, as transposed convolutions need. `write.py` lists them.
"""
