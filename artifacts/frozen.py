"""Immutable classes of annotated fields, as `dataclass(frozen=True)` without generated code.

A dataclass compiles its methods when its module is imported: 0.3 ms each, a quarter of the time that importing the
runtime took. These share theirs (decision 0036).
"""

from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

_OWN = "__match_args__"


@dataclass_transform(frozen_default=True)
def frozen(kind: type[T]) -> type[T]:
    """Give a class a constructor, equality, a hash and a text by its annotated fields; attributes cannot be assigned.

    A value in the class is a field's default; `__post_init__` is called if there is one, and methods of the class are
    kept. Every annotation is a field: base classes with fields, `field()` and the functions of `dataclasses` are not
    supported.
    """
    methods = {
        _OWN: tuple(kind.__annotations__),
        "__init__": _init,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        "__eq__": _equal,
        "__hash__": _hash,
        "__repr__": _text,
    }
    for name, value in methods.items():
        if name not in kind.__dict__:
            setattr(kind, name, value)
    return kind


def replaced(record: T, **changes: Any) -> T:
    """The record with some fields changed."""
    return type(record)(**{**record.__dict__, **changes})


def _init(self: Any, *values: Any, **named: Any) -> None:
    kind, own = type(self), self.__dict__
    names = kind.__match_args__
    given = len(values)
    if given > len(names) or not named.keys() <= set(names[given:]):
        raise TypeError(f"{kind.__name__} has the fields {', '.join(names)}, each to be given once")
    own.update(zip(names, values, strict=False))
    for name in names[given:]:  # in this order, in which a hash reads them
        if name in named:
            own[name] = named[name]
        elif name in kind.__dict__:
            own[name] = kind.__dict__[name]
        else:
            raise TypeError(f"{kind.__name__} needs a value for '{name}'")
    if hasattr(kind, "__post_init__"):
        self.__post_init__()


def _refuse(self: Any, name: str, value: Any = None) -> None:
    raise AttributeError(f"{type(self).__name__} cannot be changed")


def _equal(self: Any, other: object) -> bool:
    return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(tuple(self.__dict__.values()))


def _text(self: Any) -> str:
    fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
    return f"{type(self).__qualname__}({fields})"
