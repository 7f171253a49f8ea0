"""Memory for arrays of the size of a model's weights: in a file without a name if they are large.

The system can write its pages out where memory is short, as those of the model that a compile maps.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterable

import numpy as np

from heterocc.artifacts.weights.tensors import aligned

LARGE = 9 << 26
"""Bytes from which arrays are in a file: a compile may take the model's size and 1 GB, of which the bundle's weights
are the one, and TVM and ONNX Runtime half of the other."""


class Memory:
    """Memory for some arrays, each of which may be taken once."""

    def __init__(self, sizes: Iterable[int]) -> None:
        """`sizes` are the bytes of the arrays."""
        total = sum(map(aligned, sizes))
        self._left = _in_file(total) if total >= LARGE else None

    def take(self, nbytes: int) -> np.ndarray:
        """Bytes of an array, of any contents."""
        if self._left is None:
            return np.empty(nbytes, np.uint8)
        found, self._left = self._left[:nbytes], self._left[aligned(nbytes) :]
        return found


def _in_file(nbytes: int) -> np.ndarray | None:
    """Bytes in a file of the temporary directory; None if it has no room for them."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)  # the first write to a page without room would end the process
        return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)
    return None
