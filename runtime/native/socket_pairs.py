"""Bytes passed between pairs of sockets by the CPU plug-in, without the interpreter.

See runtime/native/cpu/socket_pairs.h.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

from heterocc.runtime.native import cpu_api


def pass_between(first: int, second: int, seconds: float, ended: int, number: int) -> None:
    """Pass bytes between two sockets that do not block, until one end is closed, or has taken nothing for some time.

    Then `number` is written to the descriptor `ended` as eight bytes; until then the sockets must stay open.

    Raises OSError.
    """
    error = _function()(first, second, seconds, ended, number)
    if error:
        raise OSError(error, os.strerror(error))


@cache
def _function() -> Any:
    function = cpu_api.loaded_library().heterocc_cpu_pass_between
    descriptor = ctypes.c_int32
    function.restype = descriptor
    function.argtypes = [descriptor, descriptor, ctypes.c_double, descriptor, ctypes.c_int64]
    return function
