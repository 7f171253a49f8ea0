"""Quantised operators, and layers between DequantizeLinear and QuantizeLinear."""
