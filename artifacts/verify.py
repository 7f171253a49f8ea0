"""Hashes weights in parallel, in the foreground or beside other work, each tensor once."""

from __future__ import annotations

import _thread
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from heterocc.artifacts.errors import BundleError, BundleHashError
from heterocc.artifacts.locks import renewed_lock
from heterocc.artifacts.watch import SETTLED_NS as _SETTLED_NS

FileKey = tuple[int, int, int, int, int, str]
"""Device, inode, size, mtime and ctime in ns, SHA-256 of the manifest: what an unchanged file has in common."""

_memo: set[FileKey] = set()
_memo_lock = renewed_lock()


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the weight file and the SHA-256 that they must have; `error` makes what is raised if they differ."""

    data: memoryview
    sha256: str
    error: Callable[[], BundleError]
    ready: Callable[[], None] = lambda: None
    """Raises BundleError where `data` may not be touched."""


def is_remembered(key: FileKey) -> bool:
    """Whether the weights of this very file were found right before in this process."""
    with _memo_lock:
        return key in _memo


def remember(key: FileKey) -> None:
    """Note that the weights of a file are right; only for a file that `is_settled` when it was opened."""
    with _memo_lock:
        _memo.add(key)


def is_settled(key: FileKey) -> bool:
    """Whether any later change of a file that was opened just now must show in its ctime.

    Not if it was changed less than 100 ms ago: another change in the same tick of the file system's clock would leave
    mtime and ctime as they are.
    """
    return time.time_ns() - key[4] > _SETTLED_NS


def forget_all() -> None:
    """Forget every verified file (for tests and measurements)."""
    with _memo_lock:
        _memo.clear()


class Verification:
    """A verification that runs in background threads; `wait` gives its result.

    A process may end before its verification does.
    """

    def __init__(self, extents: Sequence[Extent], threads: int, on_success: Callable[[], None]) -> None:
        # Largest first: the last tensors to finish are then short ones.
        self._queue = iter(sorted(extents, key=lambda e: -e.data.nbytes))
        self._lock = renewed_lock()
        self._process = os.getpid()
        self._on_success = on_success
        self._error: BundleError | None = None
        self._running = max(1, min(threads, len(extents))) if extents else 0
        self._finished = threading.Event()
        if not self._running:
            self._finished.set()
            on_success()
        for _ in range(self._running):
            # Not threading.Thread: its start() waits for the new thread, on a busy machine for tens of milliseconds.
            try:
                _thread.start_new_thread(self._work, ())
            except RuntimeError:  # no thread to be had
                self._work()

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._finished.is_set()

    @property
    def lost(self) -> bool:
        """Whether a fork has left its threads in the parent, so that there never will be a result."""
        return not self._finished.is_set() and os.getpid() != self._process

    def wait(self) -> None:
        """Return when every tensor was found right; raises BundleHashError naming the first found wrong."""
        self._finished.wait()
        if self._error is not None:
            # A new object each time: an exception that is raised twice collects both tracebacks.
            raise type(self._error)(self._error.message, where=self._error.where, hint=self._error.hint)

    def _take(self) -> Iterator[Extent]:
        while True:
            with self._lock:
                extent = next(self._queue, None) if self._error is None else None
            if extent is None:
                return
            yield extent

    def _work(self) -> None:
        try:
            for extent in self._take():
                extent.ready()
                if hashlib.sha256(extent.data).hexdigest() != extent.sha256:
                    raise extent.error()
        except BundleError as error:
            with self._lock:
                self._error = self._error or error
        except BaseException as error:  # a waiter must never take a thread that died for success
            with self._lock:
                self._error = self._error or BundleError(f"the weights could not be verified: {error!r}")
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            if self._error is None:
                self._on_success()
            self._finished.set()


def wrong_hash(what: str) -> BundleHashError:
    """The error for `what` (a member or a tensor) whose bytes are not those that the manifest promises."""
    return BundleHashError(
        f"the SHA-256 of {what} differs from the manifest",
        hint="the file was damaged or changed; copy it again, or compile the model again",
    )
