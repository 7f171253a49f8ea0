"""Minimal filtering: convolutions that multiply transformed inputs and weights.

`model.py` says where it is faster. `winograd.py`, `block_inputs.py` and `transforms.py` write it, `phases.py` does so
for dilated convolutions, and `filtered.py` transforms the weights.
"""
