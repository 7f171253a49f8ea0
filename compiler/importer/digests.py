"""Digests of constants, each computed once for a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from heterocc.artifacts.packed import PackedArray

_LARGE = 1 << 20
"""Bytes from which an array is hashed in a thread of its own."""

_THREADS = 4


def digest(array: np.ndarray[Any, Any]) -> str:
    """SHA-256 of the elements of an array in row-major order. Raises TypeError for Python objects."""
    if isinstance(array, PackedArray):
        found = hashlib.sha256()
        for piece in array.pieces():
            found.update(piece.view(np.uint8).data)
        return found.hexdigest()
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


class Digests:
    """SHA-256 digests of arrays that do not change, remembered by where their elements are.

    It keeps the arrays. Several threads may use it; at worst they hash an array twice.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[np.ndarray[Any, Any], str]] = {}

    def of(self, array: np.ndarray[Any, Any]) -> str:
        """The digest of an array's elements; see `digest`."""
        key = _key(array)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (array, digest(array))
        return found[1]

    def known(self, array: np.ndarray[Any, Any]) -> str | None:
        """The digest of an array, or of another with the same elements in memory, if it was computed before."""
        found = self._known.get(_key(array))
        return None if found is None else found[1]

    def compute(self, arrays: Iterable[np.ndarray[Any, Any]]) -> None:
        """Hash the large ones of several arrays side by side, for later calls of `of`."""
        keys = ((_key(a), a) for a in arrays if a.nbytes >= _LARGE and not a.dtype.hasobject)
        large = {key: a for key, a in keys if key not in self._known}
        if len(large) > 1:
            with ThreadPoolExecutor(_THREADS) as pool:
                ordered = sorted(large.items(), key=lambda found: -found[1].nbytes)
                for (key, array), found in zip(ordered, pool.map(digest, [a for _, a in ordered]), strict=True):
                    self._known[key] = (array, found)


def _key(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """The place and number of the bytes of an array in row-major order; other arrays are only like themselves."""
    if isinstance(array, PackedArray):
        return array.data.ctypes.data, array.data.nbytes, array.size, array.is_signed
    return (array.ctypes.data, array.nbytes) if array.flags.c_contiguous else (id(array),)
