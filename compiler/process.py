"""The command as a process: its streams, its exit code, and how signals end it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from heterocc.artifacts import atomic
from heterocc.compiler import scratch, tools
from heterocc.compiler.printable import ENCODING_ERRORS

GRACE = 2.0
"""Seconds that the code at work has to end by itself after a signal. Code in a library does not hear of the signal
before it returns."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asks the process to end; no `except Exception` and no library takes it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def prepare_streams() -> None:
    """Let output never fail for its characters, nor go into a file that took the number of a closed stream."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ENCODING_ERRORS)


def run_command(command: Callable[[], object], told: Callable[[str], None]) -> int:
    """Run a command until it ends or a signal ends it; the exit code: 128 and the signal's number after a signal.

    `told` shows a line to the user. On a signal this does not return: what the process left anywhere is removed, the
    programs that it started are ended, and it exits.
    """
    _watch_signals(told)
    try:
        command()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except Ended as ended:
        _end(ended.number, told)
    return 0


def _watch_signals(told: Callable[[str], None]) -> None:
    caught = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]  # nohup and `&` ignore some
    for number in caught:
        signal.signal(number, _raise)
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    # Python runs a handler only between steps of its own code; what is written here is read at once.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, frozenset(caught), told), name="signals", daemon=True).start()


def _raise(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # the second one ends the process as if it had no handler
    raise Ended(number)


def _watch(reader: int, caught: frozenset[signal.Signals], told: Callable[[str], None]) -> None:
    while (number := os.read(reader, 1)[0]) not in caught:
        pass
    threading.Event().wait(GRACE)
    _end(number, told)


_ending = threading.Lock()


def _end(number: int, told: Callable[[str], None]) -> NoReturn:
    """Leave nothing behind and exit; by `_exit`, for threads may be at work in libraries."""
    # Where another thread is at it, it exits; unless it hangs.
    with contextlib.suppress(Exception):
        if not _ending.acquire(timeout=GRACE):
            os._exit(128 + number)
        tools.kill_all()
        scratch.remove_all()
        atomic.discard_all()
    with contextlib.suppress(Exception):
        told("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}")
    os._exit(128 + number)
