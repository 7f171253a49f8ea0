"""Matrices that a function reads as they are and transposed, such as the table of a language model's tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heterocc.compiler.lower.wide_array import as_stored

_LEAST_TIED = 1 << 16
"""Bytes below which a matrix is not compared with others."""


def tied(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays with views in place of large matrices that are others transposed.

    A language model reads a table for its first operator, and the same one transposed for its last product; the import
    has computed the transposition.
    """
    found = dict(arrays)
    first: list[np.ndarray] = []
    for name, array in arrays.items():
        if array.ndim != 2 or array.nbytes < _LEAST_TIED:
            continue
        known = next(
            (o for o in first if o.dtype == array.dtype and is_transposed(as_stored(array), as_stored(o))), None
        )
        if known is None:
            first.append(array)
        else:
            found[name] = known.T
    return found


def is_transposed(array: np.ndarray, other: np.ndarray) -> bool:
    """Whether an array is a matrix, and another one of the same size transposed, by all bytes."""
    size = array.dtype.itemsize
    if array.ndim != 2 or array.shape != other.shape[::-1] or size != other.dtype.itemsize or size not in (1, 2, 4, 8):
        return False
    one, turned = array.view(f"u{size}"), other.view(f"u{size}").T
    # A row and a column differ in nearly all matrices that are not alike.
    return all(np.array_equal(one[part], turned[part]) for part in (np.s_[0], np.s_[:, 0], np.s_[:]))
