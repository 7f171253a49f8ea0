"""Half precision: what is stored as float16, and the casts around kernels."""
