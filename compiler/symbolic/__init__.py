"""Sizes as expressions of named dimensions, and what a node is given and needs in terms of them.

`sizes.py` has the expressions; `quotients.py`, `comparisons.py` and `integers.py` compute with them. `given.py` is what
is known of a node's inputs when its shapes are computed, `requirement.py` what a node needs of them.
"""
