"""Kernels for CPUs that are written, not scheduled: any size, no extent that has to divide."""
