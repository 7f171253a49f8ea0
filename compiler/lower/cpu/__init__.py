"""LLVM code for the CPU.

`lowering.py` goes from a partition through Relax to scheduled kernels and one shared object, whose entry is
`main(*inputs, *outputs, weights)`: it writes into the caller's tensors, and takes weights as arguments. Kernels are
generated (`generate/`) where this is possible, among them products and convolutions; `schedule.py`
schedules the others block by block (`generic.py`).

`sources.py` identifies kernels by what they were generated from, and `common_code.py` gives kernels that differ only in
sizes one function (decision 48). `measured.py` times the options that the models of speed find nearly equal, once for a
cache (decision 37).

Weights of 16 bits stay so in the bundle (`narrow_weights.py`). `channels_last.py` keeps the order of the axes between
quantised convolutions. `attention.py` finds attention among the Relax operators.

Dynamic sizes: a batch of separate items runs kernels for one item in loops (`batches.py`), but products of few
rows as one of all items (`rows_of_items.py`, decision 80). For other dynamic dimensions the generators get sizes in
place of numbers (`sizes.py`, decision 26), and `guarded.py` adds code for sizes that do not meet the assumptions of the
generated code: narrower vectors, then plain loops. `bound_sizes.py` computes each size once.
"""
