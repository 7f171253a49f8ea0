"""Environment variables that simulate failures, for tests, and the warning of a process that honours one."""

from __future__ import annotations

import os
import sys
import threading
import warnings

WRONG_KERNEL = "HETEROCC_TEST_WRONG_KERNEL"
"""A node whose kernel the compiler makes wrong. Read at each lowering."""

_LOCK = threading.Lock()
_honoured: set[str] = set()


def native_variable(backend: str) -> str:
    """The variable with the failures that a back end's plug-in simulates, which reads it once in a process."""
    return f"HETEROCC_{backend.upper()}_FAULT"


def honour(variable: str, *, reported: bool = False) -> str | None:
    """The value of a variable; None if it is not set or empty.

    Warns if it is set, once in a process: on stderr, whatever Python's filters say of warnings, unless that is
    `reported` already; and by a RuntimeWarning.
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
    """The variables that take effect on what this process does now, sorted by name."""
    with _LOCK:
        return tuple(sorted(name for name in _honoured if name != WRONG_KERNEL or os.environ.get(name)))
