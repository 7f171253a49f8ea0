"""Symbolic dimensions: what import knows of shapes and integers, as expressions of `compiler/symbolic/`.

`derivation.py` derives the shapes of values, node by node, into `symbols.py`; `compiler/symbolic/contents.py` follows
integers that are computed from shapes. `control.py` derives the shapes of values in branches and bodies, `branches.py`
which branches runs can take, `containers.py` what sequences hold. Each size that is known only at run time gets a name
(decision 28).
"""
