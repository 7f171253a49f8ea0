"""Kernels that converters request as a whole, written for the vectors of a CPU."""
