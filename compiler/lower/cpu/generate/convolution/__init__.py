"""Convolutions and pooling in plain NCHW.

`form.py` reads a convolution, and one of three dimensions as one of two for each plane of outputs. The forms, each a
candidate with a time of its own (see `generate/__init__.py`):

- `direct.py`: vectors along pixels. `copied_rows.py` says for which rows, `padded.py` copies those with zeros beside
  them, `masked_rows.py` those of any length;
- vectors along channels, in tiles of pixels (`pixel_tiles.py`): `row_tiles.py` reads rows in place or copies them
  (`dense_rows.py`), `input_blocks.py` keeps the sums between blocks of input channels, and has the pixels of 1x1 side
  by side (decision 54). `taps_inside.py` has the taps that are not in the padding;
- `filtering/`: 3x3 by minimal filtering;
- depthwise ones: `planes.py` reads in place (`shifted.py`: vectors with zeros outside a row), `sized_planes.py` does so
  in masked vectors of any size, `depthwise.py` copies rows: large strides and kernels. `row_lanes.py` chooses lanes.

`pooling.py` combines windows (`divisors.py`: the divisors of means at a border; `pooling_last.py`: maps with the
channels last).
"""
