"""Symbolic dimensions: sizes as expressions of named dimensions, and what import knows of shapes and integers.

`derivation.py` derives the shapes of values, node by node, into `symbols.py`; `sizes.py` has the expressions, and
`contents.py` follows integers that are computed from shapes. `control.py` derives the shapes of values in branches and
bodies, `branches.py` which branches runs can take, `containers.py` what sequences hold. Each size that is known only at
run time gets a name (decision 28).
"""
