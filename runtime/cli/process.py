"""The command as a process: its streams, its exit code, and how signals end it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from heterocc.artifacts.files import atomic
from heterocc.artifacts.text.printable import ENCODING_ERRORS

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ending = threading.Event()
_interruptible: list[threading.Event] = []
_undo: list[Callable[[], None]] = []


def prepare_streams() -> None:
    """Prepare standard streams: escape characters that cannot be encoded, and open closed ones on /dev/null.

    Otherwise a file opened later would get the number of a closed stream, and output would be written into it.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ENCODING_ERRORS)


def end_on_signals(show: Callable[[str], None], *leave: Callable[[], None]) -> None:
    """Make SIGINT, SIGTERM and SIGHUP end the process with the exit code 128 plus their number.

    Before that `leave` is called, unfinished files are removed, and `show` prints a line for the user.
    No exception is raised: libraries and `except Exception` would treat it as an error of the model.
    """
    caught = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]  # nohup and `&` ignore some
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    # Python runs handlers only between bytecodes of the main thread; a byte in this pipe is read immediately.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in caught:
        signal.signal(number, lambda _number, _frame: None)
    threading.Thread(target=_watch, args=(reader, frozenset(caught), show, leave), name="signals", daemon=True).start()


@contextlib.contextmanager
def at_end(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if a signal ends the process within the block, which is not left otherwise."""
    _undo.append(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that the first SIGINT within the block sets, which does not end the process; the next one does."""
    event = threading.Event()
    _interruptible.append(event)
    try:
        yield event
    finally:
        _interruptible.remove(event)


def is_ending() -> bool:
    """Return whether a signal is ending the process."""
    return _ending.is_set()


def yield_to_signal() -> None:
    """Block if a signal is ending the process, so that failures caused by that are not reported as errors."""
    if _ending.is_set():
        threading.Event().wait()


def _watch(
    reader: int, caught: frozenset[int], show: Callable[[str], None], leave: Sequence[Callable[[], None]]
) -> None:
    while (number := os.read(reader, 1)[0]) not in caught or (number == signal.SIGINT and _interrupted()):
        pass
    _ending.set()
    for act in (*leave, atomic.discard_all, *_undo):
        _within(10.0, act)
    _within(1.0, lambda: show("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"))
    os._exit(128 + number)


def _interrupted() -> bool:
    """Tell a block that can be interrupted; False if there is none that was not told before."""
    told = [event for event in _interruptible if not event.is_set()]
    for event in told:
        event.set()
    return bool(told)


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Call `act` and wait at most `seconds`: another thread may hold a lock that it never releases."""

    def attempt() -> None:
        with contextlib.suppress(Exception):
            act()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
