"""Threads for CPU partitions: crews of exactly as many as a session asks for, lent to one run at a time.

TVM keeps a pool of workers per calling thread, whose size is that of its first use, and which a thread takes down when
it ends. Callers therefore have none: a run on several threads is led by a thread of ours, and TVM's pool is the
leader's. Crews outlive short-lived callers, there are as many as runs were ever under way at once, and a forked child,
in which they are missing, makes its own.

Handing a run over takes 10 microseconds and more. A caller that led its runs itself would save them, but a forked child
of it could not exit: glibc destroys the pool of the child's main thread first of all, and that waits for the workers.
"""

from __future__ import annotations

import _thread
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable

from heterocc.artifacts.errors import DeviceError
from heterocc.runtime import forks
from heterocc.runtime.execute.tvm_api import use_threads

_idle: dict[int, deque[_Crew]] = {}


def on_crew(count: int, call: Callable[[], None]) -> None:
    """Run `call` with kernels on `count` threads, the caller waiting. Raises what it raises, and DeviceError.

    An interrupt of the caller is raised when the call has ended: its memory is in use until then.
    """
    idle = _idle.get(count)
    if idle is None:
        idle = _idle.setdefault(count, deque())
    try:
        crew = idle.pop()
    except IndexError:
        crew = _Crew(count)
    try:
        crew.run(call)
    finally:
        idle.append(crew)


def dismiss_idle(keep: int = 0) -> None:
    """End the threads of crews that have nothing to do, but for `keep` of each size.

    TVM's workers take up to a second to end: sessions that are loaded, run and closed in turn would pile them up.
    """
    for idle in list(_idle.values()):
        while len(idle) > keep:
            try:
                idle.pop().dismiss()
            except IndexError:
                break


class _Crew:
    """A leader, its thread, and the workers that TVM gives it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._given = _thread.allocate_lock()
        self._done = _thread.allocate_lock()
        self._call: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._given.acquire()
        self._done.acquire()
        try:
            _thread.start_new_thread(self._lead, ())
        except RuntimeError as error:
            raise DeviceError(
                f"no thread can be started for a run on {count} threads: {error}",
                where="device CPU",
                hint="load with fewer `threads`, or raise the limit on threads (`ulimit -u`)",
            ) from None

    def run(self, call: Callable[[], None]) -> None:
        self._call = call
        self._given.release()
        interrupt: BaseException | None = None
        while True:
            try:
                self._done.acquire()
                break
            except BaseException as error:
                interrupt = error
        failure, self._error = self._error, None
        if interrupt is not None or failure is not None:
            try:
                raise interrupt or failure  # type: ignore[misc]
            finally:
                del interrupt, failure  # the traceback holds this frame

    def dismiss(self) -> None:
        self._call = None
        self._given.release()

    def _lead(self) -> None:
        began = forks.generation
        while True:
            self._given.acquire()
            call, self._call = self._call, None
            if call is None:
                return
            try:
                use_threads(self._count)
                call()
            except BaseException as error:
                self._error = error
            del call
            if forks.generation != began:
                _end_orphan(self._error)
            self._done.release()


def _end_orphan(error: BaseException | None) -> None:
    """End a process that a kernel's callback forked: nobody waits for the run there."""
    if error is not None:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)
