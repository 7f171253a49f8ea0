"""Calls of code whose values have sizes that are known only at run time.

`in_memory.py` calls code that returns new tensors, because their shapes are known only then; `on_device.py` does so on
a GPU, with buffers for the largest sizes (decision 27).
"""
