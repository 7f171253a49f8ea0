"""Generation of kernels for CPUs without schedules, for extents of any size."""
