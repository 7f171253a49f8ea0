"""Kernels for sizes that are known only at run time, by generators that get sizes in place of numbers (decision 26).

`guarded.py` adds plain loops for sizes that do not meet the assumptions of the generated code. `own_sizes.py` gives
kernels at several scales of an image sizes of their own, so that their code is equal and compiled once; batches are
typically 1 (decision 100).
"""
