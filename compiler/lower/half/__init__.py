"""Half precision: the choice of values stored as float16, and the casts around kernels.

On the CPU, values of float16 and bfloat16 are float32 between the borders of a partition (`lower/relax/widened.py`); on
GPUs only sums, squares and what follows from them are (`lower/magnitudes.py`). `precision.py` narrows the values that
kernels store.
"""
