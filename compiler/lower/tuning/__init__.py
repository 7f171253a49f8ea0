"""What the choices of kernels by timing have in common, on the CPU and on GPUs."""
