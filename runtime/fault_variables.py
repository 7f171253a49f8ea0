"""Environment variables that simulate failures for tests, and the warning if one is in effect."""

from __future__ import annotations

import os
import sys
import threading
import warnings

WRONG_KERNEL = "HETEROCC_TEST_WRONG_KERNEL"
"""The name of a node for which the compiler generates a wrong kernel. Read at each lowering."""

_LOCK = threading.Lock()
_honoured: set[str] = set()


def native_variable(backend: str) -> str:
    """The variable with the failures that a back end's plug-in simulates; the plug-in reads it once per process."""
    return f"HETEROCC_{backend.upper()}_FAULT"


def honour(variable: str, *, reported: bool = False) -> str | None:
    """The value of a variable; None if it is not set or empty.

    If it is set, warns once per process: by a RuntimeWarning, and on stderr, regardless of Python's warning filters,
    unless `reported` says that this has been done.
    """
    value = os.environ.get(variable)
    if not value:
        return None
    with _LOCK:
        known = variable in _honoured
        _honoured.add(variable)
    if not known:
        text = f"{variable} is set: this process simulates failures ('{value}'), and its results may be wrong"
        if not reported:
            print(f"warning: {text}", file=sys.stderr, flush=True)
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    return value


def honoured() -> tuple[str, ...]:
    """The variables that are in effect in this process, sorted by name."""
    with _LOCK:
        return tuple(sorted(name for name in _honoured if name != WRONG_KERNEL or os.environ.get(name)))
