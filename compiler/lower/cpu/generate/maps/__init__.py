"""Maps: kernels without sums, each element of whose outputs is computed from elements of the inputs.

`linear_reads.py` finds places in memory that are linear in the loops though indices are not, `shuffles.py` puts the
elements of several rows together in turn, and `transposes.py` transposes square blocks in registers.
`pieces.py` divides loops where conditions change.
"""
