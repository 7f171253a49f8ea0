"""Generation of kernels for CPUs without schedules, for extents of any size.

A reader (`read.py`: a kernel as a contraction with stages before and after it) → candidates → a choice → a writer → the
packing of the weights. Every form of a product or convolution in FORMS of `generate.py` proposes candidates: a modelled
time, and what makes the writer. `candidates.py` multiplies each time by one factor for the form and core
(`cores.py`), and has the form with the least written. Forms do not know each other. Of other kinds of kernels
`generate.py` takes the first that fits.

All use `places.py` (loops combined to axes, indices as linear forms), `tiles.py` (the register tile, chosen by a model,
for the registers in `isa.py`), `terms.py` (kinds of terms: their types, how rows' numbers are read, and multiply-adds),
`emit.py` (tiles and loops), `epilogue.py` (operations on sums before they are stored), `spans.py` (rows of any length
in vectors), `fetch.py` (prefetches of weights) and `panels.py` (the order of packed weights). `masked.py` reads and
stores vectors in part, with AVX-512 (decision 41).
"""
