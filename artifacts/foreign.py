"""Exceptions that are not of what our code calls: those that a user's signal handler raises, or sets in a thread.

They arrive between any two of our instructions, and so in blocks that catch whatever a library raises.
"""

from __future__ import annotations

import functools
import signal
import sys
from types import CodeType
from typing import Any

_LIBRARIES = frozenset({"google", "ml_dtypes", "numpy", "onnx", "onnxruntime", "onnx_ir", "tvm", "tvm_ffi"})


def pass_foreign(error: BaseException) -> None:
    """Raise an exception again, unchanged, if none of the libraries that we call can have raised it.

    It stands first in a block that catches `Exception`.
    """
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


def _code(handler: Any) -> CodeType | None:
    """The code of a signal handler that is written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    found = getattr(handler, "__code__", None)
    return found if isinstance(found, CodeType) else None
