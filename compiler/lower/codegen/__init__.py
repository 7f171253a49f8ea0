"""Code generation: from scheduled kernels to the bytes of a shared object.

`kernel_objects.py` compiles each kernel to an object file of its own and keeps it on disk by signature, so that a
kernel is compiled once for all networks; it begins with the first kernel that is scheduled. `argument_checks.py` leaves
one check of a kernel's arguments.
"""
