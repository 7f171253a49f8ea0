"""The attributes and inputs of a node during its conversion, which remember what was read.

A converter that does not read an attribute would compute as if it had the default value, without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx
from tvm.relax.frontend.onnx import onnx_frontend

_LONG = 4096
"""The most elements of a list among the attributes of which tuples are made."""


def parsed(attributes: Sequence[onnx.AttributeProto], parse: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """The values by name, as `parse` gives them; long lists stay as they are: trees have millions of nodes."""
    lists = ((a.name, values) for a in attributes for values in (a.ints, a.floats, a.strings))
    long = {name: values for name, values in lists if len(values) > _LONG}
    return {**parse([a for a in attributes if a.name not in long]), **long}


class Attributes(dict[str, Any]):
    """Attributes by name. `seen` are the names that were read, or left out of a copy."""

    def __init__(self, values: Mapping[str, Any], seen: set[str] | None = None) -> None:
        super().__init__(values)
        self.seen = set() if seen is None else seen

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.seen.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or the default."""
        self.seen.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove an attribute, and return its value."""
        self.seen.add(name)
        return super().pop(name, *default)

    def changed(self, changes: Mapping[str, Any], without: Collection[str] = ()) -> Attributes:
        """A copy with other values, and without some attributes; both remember in one place what was read."""
        self.seen.update(without)
        return Attributes({**{k: v for k, v in self.items() if k not in without}, **changes}, self.seen)


class Inputs(onnx_frontend.onnx_input):  # type: ignore[misc]  # TVM has no type information
    """The inputs of a node for TVM's converters. `seen` are the indices of those that were read."""

    def __init__(self, values: Collection[Any]) -> None:
        super().__init__(values)
        self.seen: set[int] = set()

    @property
    def unread(self) -> list[int]:
        """The indices of inputs that are there and were not read."""
        return [i for i in range(len(self)) if i not in self.seen and list.__getitem__(self, i) is not None]

    def __getitem__(self, item: int | slice) -> Any:
        if isinstance(item, slice):
            return [self[i] for i in range(len(self) if item.stop is None else item.stop)[item]]
        self.seen.add(item % len(self) if item < 0 else item)
        return list.__getitem__(self, item) if item < len(self) else None

    def __add__(self, others: list[Any]) -> Inputs:
        """These inputs with others behind them; both remember in one place what was read."""
        found = Inputs([*list.__iter__(self), *others])
        found.seen = self.seen
        return found

    def __iter__(self) -> Any:
        self.seen.update(range(len(self)))
        return super().__iter__()
