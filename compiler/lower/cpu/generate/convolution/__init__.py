"""Convolutions and pooling in plain NCHW.

`form.py` reads a convolution, and one of three dimensions as one of two for each plane of outputs. The forms, each a
candidate with a time of its own (see `generate/__init__.py`):

- `direct.py`: vectors along pixels. `input_rows.py` says for which rows, `padded.py` copies them with zeros beside
  them;
- `channel_tiles.py`: vectors along channels, in tiles of the pixels of a row (`channel_tiling.py` has their sizes and
  time). Rows without padding and strides are read where they are, others are copied, and taps in the padding are left
  out (`taps_inside.py`). Sums are kept between blocks of input channels (decision 54);
- `filtering/`: 3x3 by minimal filtering;
- `planes.py`: windows over planes, depthwise ones (`depthwise.py`) and pooling (`pooling.py`), also over planes one
  behind the other and, of pooling, with the channels last. Rows are read by masks, or from a padded copy
  (`masked_rows.py`).
"""
