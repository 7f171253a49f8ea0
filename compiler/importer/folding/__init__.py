"""Constants computed, branches decided, nodes without effect removed, convolutions fused.

`settle.py` makes computed shapes constants. `conv_fusion.py` and `pad_fusion.py` move scales, biases and zero padding
into convolutions, `stacked.py` takes stacks away from reductions.
"""
