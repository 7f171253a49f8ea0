"""Maps: kernels without sums, each element of whose outputs is computed from elements of the inputs.

`linear_reads.py` finds places in memory that are linear in the loops though indices are not, `repeats.py` reads
elements several times, `spaced.py` every second to fourth one, `interleaves.py` those of several rows in turn, and
`transposes.py` transposes square blocks in registers.
`pieces.py` divides loops where conditions change, and `tables.py` looks results of bytes up.
"""
