"""Exceptions that pass through TVM's C++ code as what they are.

TVM calls functions in Python. An exception that one raises comes out of TVM as a new one, of RuntimeError unless TVM
knows the class: so do those of a user's signal handler, which Python calls between any two instructions.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from tvm_ffi import core

from heterocc.artifacts.foreign import is_foreign_class

_ENDS = (KeyboardInterrupt, SystemExit)


def keep_types() -> None:
    """Let TVM know the classes of exceptions that a user has defined so far, and those that end programs."""
    found = _subclasses(BaseException)
    for cls in found.difference(_known):
        if cls not in core.ERROR_TYPE_TO_NAME and (cls in _ENDS or is_foreign_class(cls)):
            # Two classes may have one name.
            name = f"{cls.__module__}.{cls.__qualname__}.{len(core.ERROR_TYPE_TO_NAME)}"
            core.ERROR_NAME_TO_TYPE[name] = _maker(cls)
            core.ERROR_TYPE_TO_NAME[cls] = name
    _known.update(found)


_known: WeakSet[type[BaseException]] = WeakSet()
"""The classes that were looked at before: there are hundreds, and hardly any new ones from one compile to the next."""


def _maker(cls: type[BaseException]) -> type:
    """What TVM takes for the class: it makes exceptions without a call of the class, which may need other arguments."""
    base: Any = next(known for known in cls.__mro__ if known.__module__ == "builtins")

    def made(_: type, message: str) -> BaseException:
        error: BaseException = base.__new__(cls, message)
        error.args = (message,)
        return error

    return type(cls.__name__, (), {"__new__": made})


def _subclasses(cls: type[BaseException]) -> set[type[BaseException]]:
    found: set[type[BaseException]] = set()
    left = [cls]
    while left:
        inner = set(type.__subclasses__(left.pop())) - found
        found |= inner
        left += inner
    return found
