"""Changes of a partition's Relax functions, before their kernels are scheduled.

`attention.py` finds attention among the operators (`operands.py`: the tensors it reads and writes), `channels_last.py`
keeps the order of the axes between quantised convolutions, and `rounded_apart.py` keeps results of 16 bits out of the
kernels of their sums.
"""
