"""Converters of operators that make, cut, join and reshape arrays.

Operators whose places or sizes are data have two more converters each, beside their own (`computed/numbers.py`).
"""
