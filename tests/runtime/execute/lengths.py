"""The nodes that count the keys of GroupQueryAttention from a mask, in the text form of ONNX models."""

from __future__ import annotations

LENGTHS = """
  axes = Constant<value_ints: ints = [1]>()
  one = Constant<value_int: int = 1>()
  counts = ReduceSum<keepdims=0>(mask, axes)
  last = Sub(counts, one)
  lengths = Cast<to=6>(last)
  shape = Shape(mask)
  wide = Gather<axis=0>(shape, one)
  total = Cast<to=6>(wide)
"""
"""`lengths` and `total` of `mask` [batch, keys]."""
