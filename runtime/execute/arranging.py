"""Weights in the layouts that compiled code reads, made from the bundle's weights at load."""

from __future__ import annotations

import _thread
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from heterocc.artifacts.errors import HeteroccError, InternalError
from heterocc.artifacts.files.locks import renewed_lock
from heterocc.artifacts.files.pages import ask_for_large_pages
from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import Layout
from heterocc.artifacts.weights.layouts import result_dtype
from heterocc.artifacts.weights.tensors import aligned
from heterocc.artifacts.weights.verify import Verification
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.execute.memory import Allocations, aligned_bytes
from heterocc.runtime.feeds import Array
from heterocc.runtime.native import cpu_api

Key = tuple[int, Layout]
"""A weight and a layout of it."""


@frozen
class _Task:
    source: Array
    layout: Layout
    result: Array


class Arranging:
    """The weights of a variant in other layouts, each made once, in one piece of host memory.

    `array` gives the place of one before it is filled. `start` makes all in the background, `wait` returns when that is
    done. Thread-safe after construction.
    """

    def __init__(
        self,
        keys: Iterable[Key],
        array_of: Callable[[int], Array],
        threads: int,
        allocations: Allocations,
        beside: Sequence[Arranging] = (),
    ) -> None:
        """`keys` are those to keep; those that the ones `beside` keep are shared.

        Raises DeviceMemoryError if there is not enough memory.
        """
        self._others = {key: other for other in reversed(beside) for key in other._tasks}
        self._array_of = array_of
        self._threads = threads
        self._tasks: dict[Key, _Task] = {}
        self._lock = renewed_lock()
        self._finished = threading.Event()
        self._process: int | None = None
        self._error: HeteroccError | None = None
        self._used: dict[Arranging, None] = {}
        own = []
        for key in keys:
            if key in self._others:
                self._used[self._others[key]] = None
            else:
                own.append(key)
        sources = {key: array_of(key[0]) for key in own}
        dtypes = [result_dtype(source.dtype, layout) for (_, layout), source in sources.items()]
        sizes = [prod(key[1].shape) * dtype.itemsize for key, dtype in zip(sources, dtypes, strict=True)]
        memory = _zeros(sum(map(aligned, sizes)), allocations)
        start = 0
        for (key, source), dtype, size in zip(sources.items(), dtypes, sizes, strict=True):
            result = memory[start : start + size].view(dtype).reshape(key[1].shape)
            self._tasks[key] = _Task(source, key[1], result)
            start += aligned(size)
        if not self._tasks:
            self._finished.set()

    def array(self, weight: int, layout: Layout) -> Array:
        """The place of a kept weight in a layout, 64-byte aligned."""
        other = self._others.get((weight, layout))
        return (self if other is None else other)._tasks[weight, layout].result

    def now(self, weight: int, layout: Layout) -> Array:
        """A weight in a layout, made by the caller, for a device that reads or copies it while a bundle is loaded.

        In its place if it is kept, else as a new array.
        """
        other = self._others.get((weight, layout), self)
        task = other._tasks.get((weight, layout))
        if task is None:
            source = self._array_of(weight)
            dtype = result_dtype(source.dtype, layout)
            result = aligned_bytes(prod(layout.shape) * dtype.itemsize).view(dtype).reshape(layout.shape)
            result[...] = 0
            task = _Task(source, layout, result)
        self._make(task)
        return task.result

    def start(self, verification: Verification) -> None:
        """Make everything in a background thread as soon as the weights are verified."""
        with self._lock:
            if self._finished.is_set() or self._process is not None:
                return
            self._process = os.getpid()
        try:
            _thread.start_new_thread(self._work, (verification,))
        except RuntimeError:  # no thread can be started
            self._work(verification)

    def wait(self) -> None:
        """Return when everything is made; the weights must be verified. Makes it here if no thread does."""
        for other in self._used:
            other.wait()
        if self._finished.is_set() and self._error is None:
            return
        with self._lock:
            # A forked child lacks the thread.
            alone = not self._finished.is_set() and self._process != os.getpid()
            if alone:
                self._make_all()
        self._finished.wait()
        if self._error is not None:
            raise type(self._error)(self._error.message, where=self._error.where, hint=self._error.hint)

    def _work(self, verification: Verification) -> None:
        try:
            verification.wait()
        except Exception:  # every run waits for the verification first, and raises this again
            self._finished.set()
        else:
            self._make_all()

    def _make_all(self) -> None:
        try:
            # Largest first, so that threads share what takes long.
            for task in sorted(self._tasks.values(), key=lambda t: -t.result.nbytes):
                self._make(task)
        except HeteroccError as error:
            self._error = error
        except BaseException as error:  # a failed thread must not look like success to those that wait
            self._error = InternalError(f"weights could not be arranged: {error!r}")
        self._finished.set()

    def _make(self, task: _Task) -> None:
        cpu_api.arrange(task.source, task.layout, task.result.reshape(-1), self._threads)


def _zeros(nbytes: int, allocations: Allocations) -> Any:
    """Zeroed host memory at the start of a page."""
    if not nbytes:
        return np.empty(0, np.uint8)
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        ask_for_large_pages(memory)
    except (OSError, ValueError) as error:
        raise device_fault(MemoryError(str(error)), f"allocating {nbytes} bytes for weights", "the host") from error
    allocations.add(nbytes)
    return np.frombuffer(memory, np.uint8)
