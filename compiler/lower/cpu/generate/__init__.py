"""Generation of kernels for CPUs without schedules, for extents of any size.

`generate.py` tries the kinds of kernels in order; each has a folder or a module. All use `read.py` (a kernel as a
contraction with stages before and after it), `places.py` (loops combined to axes, indices as linear forms), `tiles.py`
(the register tile, chosen by a model, for the registers in `isa.py`), `emit.py` (tiles and loops), `epilogue.py`
(operations on sums before they are stored), `spans.py` (rows of any length in vectors), `fetch.py` (prefetches of
weights) and `panels.py` (the order of packed weights). `masked.py` reads and stores vectors in part with AVX-512
(decision 41). Options that the models find nearly as fast as the best go to `Isa.choose`.
"""
