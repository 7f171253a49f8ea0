"""Parallel hashing of weights, in the foreground or in the background, each tensor once."""

from __future__ import annotations

import _thread
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from heterocc.artifacts.errors import BundleError, BundleHashError
from heterocc.artifacts.files.locks import renewed_lock
from heterocc.artifacts.files.watch import SETTLED_NS as _SETTLED_NS
from heterocc.artifacts.frozen import frozen

FileKey = tuple[int, int, int, int, int, str]
"""Identity of an unchanged file: device, inode, size, mtime and ctime in ns, SHA-256 of the manifest."""

_memo: set[FileKey] = set()
_memo_lock = renewed_lock()


@frozen
class Extent:
    """Bytes of the weight file and their expected SHA-256; `error` creates the exception for a difference."""

    data: memoryview
    sha256: str
    error: Callable[[], BundleError]
    ready: Callable[[], None] = lambda: None
    """Raise BundleError if `data` may not be accessed."""


def is_remembered(key: FileKey) -> bool:
    """Return whether the weights of this unchanged file were already verified in this process."""
    with _memo_lock:
        return key in _memo


def remember(key: FileKey) -> None:
    """Record that the weights of a file are verified; only for a file that was `is_settled` when it was opened."""
    with _memo_lock:
        _memo.add(key)


def is_settled(key: FileKey) -> bool:
    """Return whether any later change of a file that was just opened will change its ctime.

    False if it was changed less than 100 ms ago: another change in the same tick of the file system's clock would not
    change mtime and ctime.
    """
    return time.time_ns() - key[4] > _SETTLED_NS


class Verification:
    """A verification that runs in background threads; `wait` returns or raises its result.

    The process may exit before the verification ends.
    """

    def __init__(self, extents: Sequence[Extent], threads: int, on_success: Callable[[], None]) -> None:
        # Largest first, so that the last tensors to finish are small.
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
            # Not threading.Thread, whose start() waits for the new thread, on a busy machine for tens of milliseconds.
            try:
                _thread.start_new_thread(self._work, ())
            except RuntimeError:  # no thread can be started
                self._work()

    @property
    def done(self) -> bool:
        """Whether the verification has ended."""
        return self._finished.is_set()

    @property
    def lost(self) -> bool:
        """Whether this is a forked child without the verification's threads, which will never end."""
        return not self._finished.is_set() and os.getpid() != self._process

    def wait(self) -> None:
        """Return when every tensor is verified. Raises BundleHashError (HC303) naming the first wrong one."""
        self._finished.wait()
        if self._error is not None:
            # A new object each time, because an exception that is raised twice collects both tracebacks.
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
        except BaseException as error:  # a failed thread must not look like success to waiters
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
    """The error for `what` (a member or a tensor) whose hash differs from the manifest."""
    return BundleHashError(
        f"the SHA-256 of {what} differs from the manifest",
        hint="the file was damaged or changed; copy it again, or compile the model again",
    )
