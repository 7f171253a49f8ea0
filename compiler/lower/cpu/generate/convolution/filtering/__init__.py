"""Minimal filtering: convolutions that multiply transformed inputs and weights.

`model.py` says where it is faster. `winograd.py` and `transforms.py` write it, and `filtered.py` transforms the
weights.
"""
