"""Locks that are free in a forked child, even if they were held in its parent."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def renewed_lock() -> threading.Lock:
    """A lock for state that stays consistent if a fork interrupts its holder: each change must be a single step."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _after_fork() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
