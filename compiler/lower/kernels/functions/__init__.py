"""Functions of float32 as arithmetic on an abstract number, for devices of all kinds.

`number.py` is what a number must have. Two are: `lanes.Lanes` makes TIR expressions of vectors and scalars, for LLVM
and OpenCL, and `vulkan/scalar.py` instructions of SPIR-V. Errors are stated for IEEE 754's arithmetic, with a fused
multiply-add or without.
"""
