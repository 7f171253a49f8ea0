"""Code generation: from scheduled kernels to the bytes of a shared object."""
