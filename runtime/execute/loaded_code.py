"""Keeps the memory files of loaded code open as long as the loader has the code.

The loader identifies a library by its path, which contains the descriptor's number. TVM's backtraces open that path:
if another file had the number by then, they would read that, and an empty one would end the process.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque

from heterocc.artifacts.files.sealed import SealedFile

_waiting: deque[SealedFile] = deque()


def keep_open(code: SealedFile, library: object) -> None:
    """Let go of `code` once `library`, which was loaded from it, is freed."""
    weakref.finalize(library, let_go, code).atexit = False


def let_go(code: SealedFile) -> None:
    """Close a memory file once the loader has released it: now, or by a later call of this or of `close_unloaded`."""
    _waiting.append(code)
    close_unloaded()


def close_unloaded() -> None:
    """Close the files that were let go of and that the loader has released."""
    for _ in range(len(_waiting)):
        try:
            code = _waiting.popleft()
        except IndexError:  # another thread does the same
            return
        loaded = True
        try:
            loaded = _is_loaded(code.path)
        finally:  # also if a signal handler raises
            if loaded:
                _waiting.append(code)
            else:
                code.close()


def _is_loaded(path: str) -> bool:
    try:
        library = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))  # which only counts down
    return True
