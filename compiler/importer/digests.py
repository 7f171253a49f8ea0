"""Digests of constants, each computed once for a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

_LARGE = 1 << 20
"""Bytes from which an array is hashed in a thread of its own."""

_THREADS = 4


def digest(array: np.ndarray[Any, Any]) -> str:
    """SHA-256 of the elements of an array in row-major order. Raises TypeError for Python objects."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


class Digests:
    """SHA-256 digests of arrays that do not change, remembered by identity. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray[Any, Any], str]] = {}

    def of(self, array: np.ndarray[Any, Any]) -> str:
        """The digest of an array's elements; see `digest`."""
        found = self._known.get(id(array))
        if found is None:
            found = self._known[id(array)] = (array, digest(array))
        return found[1]

    def compute(self, arrays: Iterable[np.ndarray[Any, Any]]) -> None:
        """Hash the large ones of several arrays side by side, for later calls of `of`."""
        large = {id(a): a for a in arrays if a.nbytes >= _LARGE and not a.dtype.hasobject and id(a) not in self._known}
        if len(large) > 1:
            with ThreadPoolExecutor(_THREADS) as pool:
                ordered = sorted(large.values(), key=lambda array: -array.nbytes)
                for array, found in zip(ordered, pool.map(digest, ordered), strict=True):
                    self._known[id(array)] = (array, found)
