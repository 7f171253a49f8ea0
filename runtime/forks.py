"""Forks of a process: the sessions and drivers that the child may use, and how the child ends.

A child has only the thread that forked. Threads of drivers, of ONNX Runtime and of TVM do not exist there, and locks
held by them or by another thread are never released, so that a call may block forever. Such calls raise an error.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from heterocc.artifacts.errors import DeviceError
from heterocc.artifacts.files.locks import renewed_lock

SPAWN = "start processes with the method 'spawn'"

generation = 0
"""The number of forks from the process that imported this module to this one."""

_inside: set[int] = set()
_interrupted = False
_opened: set[str] = set()
_lost: set[str] = set()
_exit_guarded = False
_threads_at_exit = False


class _Holders:
    """Weak references to objects. A WeakSet's would run Python code when an object ends.

    A signal handler that raises an exception in such code loses it.
    """

    def __init__(self) -> None:
        self._references: list[weakref.ref[Any]] = []
        self._most = 16
        self._lock = renewed_lock()

    def add(self, holder: object) -> None:
        """Add an object, and drop the references to those that have ended as soon as they may be half of all."""
        with self._lock:
            if len(self._references) >= self._most:
                self._references = [r for r in self._references if r() is not None]
                self._most = 16 + 2 * len(self._references)
            self._references.append(weakref.ref(holder))

    def __iter__(self) -> Iterator[Any]:
        return (holder for r in tuple(self._references) if (holder := r()) is not None)

    def clear(self) -> None:
        """Forget all objects."""
        self._references = []


_kept, _kept_if_interrupted = _Holders(), _Holders()


def enter() -> bool:
    """Mark the calling thread as working with devices. After True call `leave`; False if it is marked already."""
    me = get_ident()
    if me in _inside:
        return False
    _inside.add(me)
    return True


def leave() -> None:
    """Remove the mark of the calling thread."""
    _inside.discard(get_ident())


@contextmanager
def working(where: str | None = None) -> Iterator[None]:
    """`enter` and `leave` around a block, after `check_interrupted`."""
    check_interrupted(where)
    entered = enter()
    try:
        yield
    finally:
        if entered:
            leave()


def check_interrupted(where: str | None) -> None:
    """Raise DeviceError if this process was forked while another thread worked, because its locks remain held."""
    if _interrupted:
        raise DeviceError(
            "this process was forked while another thread loaded or ran a session",
            where=where,
            hint=f"{SPAWN}, or fork while no other thread loads or runs one",
        )


def open_driver(label: str) -> None:
    """Record that this process opens a device API. Raises DeviceError if a parent process opened it before a fork."""
    if label in _lost:
        raise DeviceError(
            f"{label} cannot be used: this process was forked from one that had used it",
            hint=f"{SPAWN}, or do not use {label} before the fork",
        )
    _opened.add(label)
    end_without_handlers()


def refusal(message: str, where: str | None = None) -> DeviceError:
    """The error for an operation that cannot continue in a forked child."""
    return DeviceError(message, where=where, hint=f"load the bundle in the child, or {SPAWN}")


def interrupted() -> bool:
    """Return whether this process was forked while another thread worked with devices."""
    return _interrupted


def keep_in_children(holder: object, *, portable: bool = False) -> None:
    """Keep forked children from freeing a holder of drivers' objects, which may block forever there.

    A `portable` holder may be freed, unless the fork interrupted another thread's work.
    """
    (_kept_if_interrupted if portable else _kept).add(holder)


def end_without_handlers() -> None:
    """Make forked children exit without the exit handlers that libraries of their parent registered.

    Some of these wait for threads that do not exist in the child; ONNX Runtime's do as soon as the package is imported.
    Python's own exit handlers, and those registered after the fork, run as usual.
    """
    global _threads_at_exit
    _threads_at_exit = True


def _after_fork() -> None:
    global generation, _interrupted
    generation += 1
    me = get_ident()
    _interrupted = _interrupted or bool(_inside - {me})
    _inside.intersection_update({me})
    _lost.update(_opened)
    for holder in (*_kept, *(_kept_if_interrupted if _interrupted else ())):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))
    _kept.clear()
    if _threads_at_exit:
        _guard_exit()


def _guard_exit() -> None:
    """Make `exit` flush C's streams and then call `_exit`.

    `on_exit` functions are called with the status, last registered first.
    """
    global _exit_guarded
    library = ctypes.CDLL(None)
    if _exit_guarded or not hasattr(library, "on_exit"):  # glibc has it
        return
    _exit_guarded = True
    library.on_exit(library._exit, None)
    library.on_exit(library.fcloseall, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
