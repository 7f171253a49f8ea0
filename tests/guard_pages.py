"""Arrays that end at a page without access, so that an access beyond their end stops the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last one of a page, between two pages without access; never freed."""
    page = mmap.PAGESIZE
    inside = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    view = (ctypes.c_char * len(memory)).from_buffer(memory)
    for start in (0, page + inside):
        address = ctypes.c_void_p(ctypes.addressof(view) + start)
        assert _LIBC.mprotect(address, page, 0) == 0
    flat = np.frombuffer(memory, np.uint8, count=array.nbytes, offset=page + inside - array.nbytes)
    copy = flat.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
