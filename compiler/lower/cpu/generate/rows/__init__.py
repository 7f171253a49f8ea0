"""Kernels of rows: softmax, normalisations and their like."""
