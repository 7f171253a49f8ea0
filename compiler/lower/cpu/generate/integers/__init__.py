"""Products of 8-bit integers, summed in 32 bits: matrices, and convolutions with the channels last.

The instructions of each CPU are in `terms.py`; with AMX `matrix_product.py` is used (decision 59), without VNNI weights
whose pairs fit in 16 bits (`limited.py` and `limited_product.py`, decision 56).
`compiler/lower/converters/quantised/dequantised.py` finds layers between DequantizeLinear and QuantizeLinear.
"""
