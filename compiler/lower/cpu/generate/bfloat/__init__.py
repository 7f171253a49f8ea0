"""Products of float32 numbers that are rounded to bfloat16, summed in float32.

The writers are derived from those of float32 (decision 34). `compiler/lower/half/products.py` lists their operators.
"""
