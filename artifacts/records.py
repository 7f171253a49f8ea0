"""Immutable records with checked fields, read from JSON and written as JSON.

A record is a class with annotated fields, as with pydantic, whose names its methods have. The checks are built at their
first use, so that a program that imports a record without reading one spends no time on them.
"""

import json
import math
import re
import typing
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, dataclass_transform, get_args, get_origin

from heterocc.artifacts.foreign import pass_foreign

Check = Callable[[Any], Any]

_REQUIRED = object()
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class MalformedError(ValueError):
    """A value that a field does not accept; `place` has the names of fields and the indices that lead to it."""

    def __init__(self, message: str, place: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.place = place

    def below(self, step: str | int) -> "MalformedError":
        """The same error for a place that is one step further down."""
        return MalformedError(self.message, (step, *self.place))


class Limit:
    """Limits of a field, given in `Annotated`: of a number, of a length, or a pattern that a whole text matches."""

    __slots__ = ("ge", "le", "max_length", "min_length", "pattern")

    def __init__(
        self,
        *,
        ge: float | None = None,
        le: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        pattern: str | None = None,
    ) -> None:
        self.ge = ge
        self.le = le
        self.min_length = min_length
        self.max_length = max_length
        self.pattern = pattern


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """Base of all records: keyword arguments, equality by fields, no assignment.

    Fields are checked when a record is made, whether from JSON or in Python: no conversions, except of lists to tuples.
    A field of a name that the class does not have is ignored in JSON, so that a reader accepts newer writers.
    """

    _fields: ClassVar[tuple[tuple[str, Check, Any], ...] | None] = None

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - {name for name, _, _ in fields(type(self))}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field '{min(unknown)}'")
        self._fill(values)

    @classmethod
    def model_validate(cls, data: Mapping[str, Any]) -> Self:
        """A record of parsed JSON. Raises MalformedError."""
        if not isinstance(data, dict):
            raise MalformedError("should be an object")
        record = cls.__new__(cls)
        record._fill(data)
        return record

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """A record of JSON text. Raises MalformedError, also for text that is not JSON."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            pass_foreign(error)
            raise MalformedError(f"is not JSON: {error}") from None
        return cls.model_validate(data)

    def _fill(self, values: Mapping[str, Any]) -> None:
        into = self.__dict__
        for name, check, default in fields(type(self)):
            if name in values:
                try:
                    into[name] = check(values[name])
                except MalformedError as error:
                    raise error.below(name) from None
            elif default is _REQUIRED:
                raise MalformedError("is missing", (name,))
            else:
                into[name] = dict(default) if type(default) is dict else default

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The record with some fields replaced."""
        return type(self)(**{**self.__dict__, **update})

    def model_dump(self, *, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """The fields as plain values; with `json`, tuples as lists."""
        return {name: _plain(value, list if mode == "json" else tuple) for name, value in self.__dict__.items()}

    def model_dump_json(self) -> str:
        """The fields as compact JSON text."""
        return compact(self.model_dump(mode="json"))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; use model_copy")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; use model_copy")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        """The fields, without the elements of long ones."""
        return f"{type(self).__name__}({', '.join(f'{k}={_short(v)}' for k, v in self.__dict__.items())})"


def _short(value: Any) -> str:
    """The repr of a value, or the number of its elements if these are many."""
    if isinstance(value, (tuple, dict)) and len(value) > 4:
        return f"<{len(value)} entries>"
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}…"


def compact(data: Any) -> str:
    """Plain values as JSON text without spaces. Raises ValueError for numbers that are not finite."""
    if isinstance(data, dict):
        return "{" + ",".join(f"{_ENCODE(key)}:{compact(value)}" for key, value in data.items()) + "}"
    if isinstance(data, list):
        return "[" + ",".join(map(compact, data)) + "]"
    if isinstance(data, float):
        # As earlier releases wrote numbers: 0.00001 and 1e-6 for Python's 1e-05 and 1e-06.
        digits, exponential, exponent = _ENCODE(data).partition("e")
        if not exponential:
            return digits
        return (
            f"{data:.{len(digits.replace('.', '').lstrip('-')) + 4}f}"
            if exponent == "-05"
            else f"{digits}e{int(exponent)}"
        )
    return _ENCODE(data)


def fields(record: type[Record]) -> tuple[tuple[str, Check, Any], ...]:
    """Name, check and default of each field."""
    if "_fields" not in record.__dict__:
        record._fields = tuple(
            (name, _check(hint), record.__dict__.get(name, _REQUIRED)) for name, hint in field_types(record).items()
        )
    return record._fields or ()


def field_types(record: type[Record]) -> dict[str, Any]:
    """The type of each field, in order."""
    hints = typing.get_type_hints(record, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def _plain(value: Any, sequence: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
    if isinstance(value, Record):
        return {name: _plain(field, sequence) for name, field in value.__dict__.items()}
    if isinstance(value, tuple):
        return sequence(_plain(item, sequence) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item, sequence) for key, item in value.items()}
    return value


def _check(hint: Any, limit: Limit | None = None) -> Check:
    """The check of a type: a function from a value to what is stored, which raises MalformedError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _check(arguments[0], arguments[1])
    if origin is UnionType or origin is Union:
        inner = [_check(a) for a in arguments if a is not NoneType]
        check = inner[0] if len(inner) == 1 else _any_of(inner)
        return _optional(check) if NoneType in arguments else check
    if origin is Literal:
        return _one_of(arguments)
    if origin is tuple:
        if arguments[-1] is ...:
            return _sequence(_check(arguments[0]), limit or Limit())
        return _row([_check(a) for a in arguments])
    if origin is dict:
        return _mapping(_check(arguments[1]))
    if hint is int or hint is float:
        return _number(hint, limit or Limit())
    if hint is bool:
        return _boolean
    if hint is str:
        return _text(limit)
    return _record(hint)


def _optional(inner: Check) -> Check:
    return lambda value: None if value is None else inner(value)


def _any_of(checks: list[Check]) -> Check:
    """The first of several checks of different types that accepts a value."""

    def check(value: Any) -> Any:
        messages = []
        for single in checks:
            try:
                return single(value)
            except MalformedError as error:
                messages.append(error.message)
        raise MalformedError(" or ".join(messages))

    return check


def _one_of(choices: tuple[Any, ...]) -> Check:
    def check(value: Any) -> Any:
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return value
        raise MalformedError(f"should be {' or '.join(map(repr, choices))}")

    return check


def _number(kind: type[int] | type[float], limit: Limit) -> Check:
    least = -math.inf if limit.ge is None else limit.ge
    most = math.inf if limit.le is None else limit.le

    def whole(value: Any) -> Any:
        if type(value) is not int:
            raise MalformedError("should be an integer")
        if not least <= value <= most:
            raise MalformedError(f"should be from {least} to {most}")
        return value

    def real(value: Any) -> Any:
        if type(value) is not float and (type(value) is not int or abs(value) > 2**53):
            raise MalformedError("should be a number")
        if not least <= value <= most or not math.isfinite(value):
            raise MalformedError(f"should be finite and from {least} to {most}")
        return float(value)

    return whole if kind is int else real


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise MalformedError("should be true or false")
    return value


def _plain_text(value: Any) -> Any:
    if not isinstance(value, str):
        raise MalformedError("should be a text")
    return value


def _text(limit: Limit | None) -> Check:
    if limit is None:
        return _plain_text
    pattern = None if limit.pattern is None else re.compile(limit.pattern)

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise MalformedError("should be a text")
        _check_length(value, limit, "characters")
        if pattern is not None and not pattern.fullmatch(value):
            raise MalformedError(f"should match {limit.pattern}")
        return value

    return check


def _check_length(value: Any, limit: Limit, unit: str) -> None:
    if limit.min_length is not None and len(value) < limit.min_length:
        raise MalformedError(f"should have at least {limit.min_length} {unit}")
    if limit.max_length is not None and len(value) > limit.max_length:
        raise MalformedError(f"should have at most {limit.max_length} {unit}")


def _sequence(item: Check, limit: Limit) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not list and type(value) is not tuple:
            raise MalformedError("should be a list")
        _check_length(value, limit, "items")
        try:
            return tuple([item(element) for element in value])
        except MalformedError:
            _locate(enumerate(value), item)
            raise

    return check


def _row(items: list[Check]) -> Check:
    def check(value: Any) -> Any:
        if (type(value) is not list and type(value) is not tuple) or len(value) != len(items):
            raise MalformedError(f"should be a list of {len(items)} items")
        return tuple(item(element) for item, element in zip(items, value, strict=True))

    return check


def _mapping(item: Check) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise MalformedError("should be an object")
        for key in value:
            _plain_text(key)
        try:
            return {key: item(element) for key, element in value.items()}
        except MalformedError:
            _locate(value.items(), item)
            raise

    return check


def _locate(elements: typing.Iterable[tuple[Any, Any]], item: Check) -> None:
    """Raise the error of the first element at fault, with its place."""
    for step, element in elements:
        try:
            item(element)
        except MalformedError as error:
            raise error.below(step) from None


def _record(kind: type[Record]) -> Check:
    def check(value: Any) -> Any:
        return value if type(value) is kind else kind.model_validate(value)

    return check
