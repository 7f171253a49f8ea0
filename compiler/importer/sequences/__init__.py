"""Sequences and optional values whose elements are known at import: their tensors take their place.

Those of a run are arrays in registers of a program (decision 49; `compiler/lower/cpu/programs/containers.py`).
"""
