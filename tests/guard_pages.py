"""Arrays that end or begin at a page without access, so that an access outside of them stops the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(array: np.ndarray, *, first: bool = False) -> np.ndarray:
    """A copy whose last byte is the last one of a page, or whose `first` is the first one, between two without access.

    Its memory is freed with it.
    """
    page = mmap.PAGESIZE
    inside = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    view = (ctypes.c_char * len(memory)).from_buffer(memory)
    for start in (0, page + inside):
        address = ctypes.c_void_p(ctypes.addressof(view) + start)
        assert _LIBC.mprotect(address, page, 0) == 0
    offset = page if first else page + inside - array.nbytes
    flat = np.frombuffer(memory, np.uint8, count=array.nbytes, offset=offset)
    copy = flat.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
