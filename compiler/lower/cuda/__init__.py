"""CUDA code through the stock code generator, compiled ahead of time."""
