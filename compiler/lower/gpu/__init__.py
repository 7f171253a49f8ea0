"""Schedules for GPUs, whatever the API.

`rules.py` is a list of rules, tried in order: products in tiles of shared memory or of registers, 3×3 convolutions by
Winograd's filtering, windows (depthwise, pooling), rows (reductions, softmax, normalisations), plain. No rule assumes
that work items run in lockstep. A rule passes alternatives to `limits.choose(name, options)`, the best according to its
model first; with `tune=on` `tuning/tune.py` times the others on the device and keeps the fastest with the same result.

Kernels with sizes of the run are written in tiles of registers if they are products or convolutions
(`contraction/sized.py`), else scheduled by the plain rule. `items.py` extends the launches of kernels for one item of a
batch by an axis of the grid. On devices that are CPUs, large tiles are stored in loops: `contraction/rotation.py` and
`turns.py` rotate values in registers for llvmpipe (decision 57). `code_passes.py` has TVM's passes from scheduled
kernels to code.

Drivers of real GPUs may behave in ways that PoCL and lavapipe never do: drop NaN, multiply by a reciprocal in place of
a division, limit a kernel to fewer work items than the device, allocate memory only at its first use, consider a busy
device hung. Code that guards against such behaviour has a comment that names it.
"""
