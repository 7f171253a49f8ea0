"""Temporary replacement of TVM's global functions. These belong to the process, so callers must hold a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi


@contextmanager
def replaced(name: str, function: Callable[..., Any] | None) -> Iterator[None]:
    """Replace a global function within the block; None removes it."""
    previous = tvm_ffi.get_global_func(name, allow_missing=True)
    if function is not None:
        tvm_ffi.register_global_func(name, function, override=True)
    elif previous is not None:
        tvm_ffi.remove_global_func(name)
    try:
        yield
    finally:
        if previous is not None:
            tvm_ffi.register_global_func(name, previous, override=True)
        elif function is not None:
            tvm_ffi.remove_global_func(name)
