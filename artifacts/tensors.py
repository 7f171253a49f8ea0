"""Where a tensor lies in the weight file: sizes in bytes, alignment."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterocc.artifacts.dtypes import STORAGE

ALIGNMENT = 64


def aligned(offset: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment` from `offset` on."""
    return -(-offset // alignment) * alignment


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int | None:
    """Bytes of a tensor, None for a dtype that no weight has. Exact: Python's integers do not overflow."""
    storage = STORAGE.get(dtype)
    return None if storage is None else math.prod(shape) * storage.itemsize
