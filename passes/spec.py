"""The text form of passes: the options of a frozen dataclass, read and written as `merge{max-nodes=64}`."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from heterocc.artifacts.errors import Hint, PipelineSpecError
from heterocc.passes.plan import Plan


class SpecPass:
    """Base class of passes, which reads and writes the fields of a frozen dataclass as pipeline spec text.

    A field is an option, with hyphens for underscores. `bool` is `on` or `off`, `int | None` a number or `none`, and
    `Literal[...]` one of its words. Options with their default value are not written. A subclass checks ranges in
    `__post_init__` and raises ValueError.
    """

    __slots__ = ()
    name: ClassVar[str]

    def run(self, plan: Plan) -> Plan:
        """The plan after this pass."""
        raise NotImplementedError

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        options = [
            f"{_hyphens(f.name)}={_show(getattr(self, f.name))}" for f in fields if getattr(self, f.name) != f.default
        ]
        return self.name + (f"{{{','.join(options)}}}" if options else "")

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The names of the options in a spec."""
        return tuple(_hyphens(f.name) for f in dataclasses.fields(cls))  # type: ignore[arg-type]

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The pass with `options` given as text. Raises PipelineSpecError (HC121)."""
        hints = get_type_hints(cls)
        parsed: dict[str, Any] = {}
        for key, text in options.items():
            if key not in cls.options():
                known = ", ".join(cls.options())
                hint = f"options of '{cls.name}': {known}" if known else f"'{cls.name}' has no options"
                raise PipelineSpecError(
                    f"pass '{cls.name}' has no option '{key}'", where=Hint("`passes`", "--passes"), hint=hint
                )
            field = key.replace("-", "_")
            try:
                parsed[field] = _read(hints[field], text)
            except ValueError as error:
                raise PipelineSpecError(
                    f"option '{key}' of pass '{cls.name}' cannot be '{text}'",
                    where=Hint("`passes`", "--passes"),
                    hint=str(error),
                ) from error
        try:
            return cls(**parsed)
        except ValueError as error:
            given = ",".join(f"{k}={v}" for k, v in options.items())
            raise PipelineSpecError(
                f"pass '{cls.name}' does not accept {{{given}}}", where=Hint("`passes`", "--passes"), hint=str(error)
            ) from error


def _hyphens(field: str) -> str:
    return field.replace("_", "-")


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _read(annotation: Any, text: str) -> object:
    if annotation is bool:
        if text not in ("on", "off"):
            raise ValueError("give on or off")
        return text == "on"
    if get_origin(annotation) is Literal:
        words = get_args(annotation)
        if text not in words:
            raise ValueError(f"give one of {', '.join(words)}")
        return text
    optional = get_origin(annotation) in (types.UnionType, Union) and type(None) in get_args(annotation)
    if optional and text == "none":
        return None
    kind = next(a for a in get_args(annotation) if a is not type(None)) if optional else annotation
    if kind not in (int, float):
        raise TypeError(f"options of type {annotation} have no text form")
    try:
        return kind(text)
    except ValueError:
        raise ValueError("give a number" + (" or none" if optional else "")) from None
