"""Sizes and alignment of tensors in the weight file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterocc.artifacts.dtypes import STORAGE

ALIGNMENT = 64


def aligned(offset: int, alignment: int = ALIGNMENT) -> int:
    """The first multiple of `alignment` that is not below `offset`."""
    return -(-offset // alignment) * alignment


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int | None:
    """Number of bytes of a tensor, or None for a dtype that weights cannot have. Python's integers do not overflow."""
    storage = STORAGE.get(dtype)
    return None if storage is None else math.prod(shape) * storage.itemsize
