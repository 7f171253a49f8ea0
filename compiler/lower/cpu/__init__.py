"""LLVM code for the CPU.

`lowering.py` goes from a partition through Relax to scheduled kernels and one shared object, whose entry is
`main(*inputs, *outputs, weights)`: it writes into the caller's tensors, and takes weights as arguments. Kernels are
generated (`generate/`) where this is possible, and others are plain loops (`loops.py`): sums of integers along rows,
scatters, comparisons.

`sources.py` identifies kernels by what they were generated from, and `common_code.py` gives kernels that differ only in
sizes one function (decision 48).

Weights of 16 bits stay so in the bundle (`narrow_weights.py`), and large ones where products read them.
`rewrites/` changes the Relax functions at first: attention, the order of axes, what is fused.

Dynamic sizes: the generators get sizes in place of numbers (`sizes.py`, decision 26), each computed once
(`bound_sizes.py`). `dynamic/` is above them: code for sizes that do not meet what generated code assumes.
"""
