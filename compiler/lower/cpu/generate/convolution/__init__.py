"""Convolutions and pooling in plain NCHW.

`form.py` analyses a convolution, and reads one of three dimensions as one of two for each plane of outputs. The forms:

- `filtering/`: 3×3 by minimal filtering, where its model finds it faster;
- `planes.py`: depthwise, read in place (`shifted.py`: vectors with zeros outside a row); `depthwise.py`: those that it
  leaves, with large strides or few channels;
- `along_channels.py`: narrow rows, large strides or dilated taps (`row_tiles.py`: in place, or from copied rows);
- `pointwise.py`: 1×1 of narrow maps (`pixel_tiles.py`: tiles of pixels times vectors of channels), and the same in
  blocks of input channels (`input_blocks.py`), where `blocks_pay.py` finds that faster (decision 54);
- `direct.py`: the others. `copied_rows.py` says for which rows, `padded.py` copies those with zeros beside them.

`taps_inside.py` has the taps that are not in the padding, `dense_rows.py` copies of their rows, `masked_rows.py` and
`sized_planes.py` the forms for sizes of the run. `pooling.py` combines windows (`divisors.py`: the divisors of means at
a border; `pooling_last.py`: maps with the channels last).
"""
