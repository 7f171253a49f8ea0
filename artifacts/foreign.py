"""Exceptions that are not of what our code calls: those that a user's signal handler raises, or sets in a thread.

They arrive between any two of our instructions, and so in blocks that catch whatever a library raises.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

_LIBRARIES = frozenset({"google", "ml_dtypes", "numpy", "onnx", "onnxruntime", "onnx_ir", "tvm", "tvm_ffi"})


def pass_foreign(error: BaseException) -> None:
    """Raise an exception again, unchanged, if none of the libraries that we call can have raised it.

    It stands first in a block that catches `Exception`. Within `handlers_heard` what a handler has raised comes first.
    """
    if _heard and _in_main_thread():
        raise _heard[-1]
    if is_foreign(error):
        raise error


def is_foreign(error: BaseException) -> bool:
    """Whether a signal handler has raised an exception, or its class is of no library that we call.

    An exception that has passed through TVM has frames with the names of those in which it was raised.
    """
    of_system = isinstance(error, TimeoutError) and error.errno is not None  # a file system over a network
    if is_foreign_class(type(error)) and not of_system:
        return True
    handlers = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    named = {(code.co_filename, code.co_name) for code in handlers} if hasattr(error, "__tvm_ffi_error__") else ()
    place = error.__traceback__ if handlers else None
    while place is not None:
        code = place.tb_frame.f_code
        if code in handlers or (code.co_filename, code.co_name) in named:
            return True
        place = place.tb_next
    return False


def is_foreign_class(cls: type[BaseException]) -> bool:
    """Whether a class of exceptions is of no library that we call.

    Libraries never raise TimeoutError, which is what handlers of alarms raise.
    """
    package = cls.__module__.partition(".")[0]
    known = package in _LIBRARIES or package in sys.stdlib_module_names or package == "heterocc"
    return not known or issubclass(cls, TimeoutError)


@contextmanager
def handlers_wait() -> Iterator[None]:
    """Let the handlers of signals that arrive within the block run after it.

    For imports: an exception would leave modules half imported, and every later import of them would fail. The block
    must be short, as Ctrl-C waits, too. In other threads, where no handler runs, this does nothing.
    """
    if not _in_main_thread():
        yield
        return
    before: dict[int, Callable[..., Any]] = {}
    handlers: dict[int, Callable[..., Any]] = {}
    arrived: list[tuple[int, Any]] = []

    def note(number: int, frame: Any) -> None:
        arrived.append((number, frame))

    try:
        for number, handler in _handlers():
            before[number] = handlers[number] = handler
            signal.signal(number, note)
        yield
    finally:
        try:
            _restore(before)
        finally:
            _call([functools.partial(handlers[number], number, frame) for number, frame in arrived])


@contextmanager
def handlers_heard() -> Iterator[None]:
    """Let the exception that a signal's handler raises within the block be what comes out of it. Also a decorator.

    Libraries lose such exceptions: TVM takes another text for an object whose text it was making, and a `with` of its
    own raises another exception on the way out. What the block made of that is thrown away with it.
    """
    if not _in_main_thread() or _listening:
        yield
        return
    before: dict[int, Callable[..., Any]] = {}

    def heard(handler: Callable[..., Any], number: int, frame: Any) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            if _listening:
                _heard.append(error)
            raise

    try:
        _listening.append(True)
        for number, handler in _handlers():
            before[number] = handler
            signal.signal(number, functools.partial(heard, handler))
        try:
            yield
        except BaseException:
            if _heard:
                raise _heard[-1]  # noqa: B904 -- the context shows what a library made of it
            raise
        if _heard:
            raise _heard[-1]
    finally:
        try:
            # A handler that was set within the block stays.
            current = {number: signal.getsignal(number) for number in before}
            _restore({n: before[n] for n, set_ in current.items() if getattr(set_, "func", None) is heard})
        finally:
            _listening.clear()
            _heard.clear()


_listening: list[bool] = []
_heard: list[BaseException] = []
"""Whether a block of `handlers_heard` runs, and the exceptions that handlers have raised in it."""


def _in_main_thread() -> bool:
    """Whether this is the thread in which Python calls handlers of signals."""
    return threading.current_thread() is threading.main_thread()


def _handlers() -> Iterator[tuple[int, Callable[..., Any]]]:
    """The signals that have handlers in Python, with these."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler):
            yield number, handler


def _restore(handlers: dict[int, Callable[..., Any]]) -> None:
    """Set handlers, all of them, even if one that was set is called at once and raises an exception."""
    try:
        while handlers:
            number, handler = next(iter(handlers.items()))
            signal.signal(number, handler)
            del handlers[number]
    finally:
        if handlers:
            _restore(handlers)


def _call(handlers: list[Callable[[], Any]]) -> None:
    """Call all of them, even if one raises an exception; of several that is the last."""
    try:
        while handlers:
            handlers.pop(0)()
    finally:
        if handlers:
            _call(handlers)


def _code(handler: Any) -> CodeType | None:
    """The code of a signal handler that is written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    found = getattr(handler, "__code__", None)
    return found if isinstance(found, CodeType) else None
