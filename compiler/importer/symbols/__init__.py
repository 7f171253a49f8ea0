"""Symbolic dimensions: what import knows of shapes and integers, as expressions of `compiler/symbolic/`.

`derivation.py` derives the shapes of values, and integers that are computed from them, node by node into `symbols.py`,
by the rules of operators' records. `control.py` derives the shapes of values in branches and bodies, `branches.py`
which branches runs can take, `containers.py` what sequences hold, `requirements.py` what only a run can check. Each
size that is known only at run time gets a name (decision 28).
"""
