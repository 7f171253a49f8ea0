"""The command as a process: its streams, its exit code, and how signals end it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

from heterocc.artifacts import atomic
from heterocc.compiler import tools
from heterocc.compiler.files import scratch
from heterocc.compiler.printable import ENCODING_ERRORS

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ending = threading.Event()


def prepare_streams() -> None:
    """Let output never fail for its characters, nor go into a file that took the number of a closed stream."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ENCODING_ERRORS)


def end_on_signals(told: Callable[[str], None]) -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end the process with the exit code 128 and their number.

    What it has not finished is removed, the programs that it started are ended, and `told` shows a line to the user.
    No exception is raised for it: libraries and `except Exception` would take that for an error of the model's.
    """
    caught = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]  # nohup and `&` ignore some
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    # Python runs a handler only between steps of the main thread's own code; what is written here is read at once.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in caught:
        signal.signal(number, lambda _number, _frame: None)
    threading.Thread(target=_watch, args=(reader, frozenset(caught), told), name="signals", daemon=True).start()


def is_ending() -> bool:
    """Whether a signal is ending the process."""
    return _ending.is_set()


def yield_to_signal() -> None:
    """Return only if no signal is ending the process: what fails because of that is not told as an error."""
    if _ending.is_set():
        threading.Event().wait()


def _watch(reader: int, caught: frozenset[int], told: Callable[[str], None]) -> None:
    while (number := os.read(reader, 1)[0]) not in caught:
        pass
    _ending.set()
    for leave in (tools.kill_all, scratch.remove_all, atomic.discard_all):
        _within(10.0, leave)
    _within(1.0, lambda: told("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"))
    os._exit(128 + number)


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Act, but wait no longer than this: another thread may hold a lock and never give it back."""

    def attempt() -> None:
        with contextlib.suppress(Exception):
            act()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
