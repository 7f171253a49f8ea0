"""Half precision: the choice of values stored as float16, and the casts around kernels."""
