"""What is known of a node's inputs when its shapes and contents are computed, and what these assume."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.symbolic.integers import is_rising, largest_within
from heterocc.compiler.symbolic.sizes import Size, named, number

_TRIED = 2048
_LARGE = (2048, 9973, 50_021, 400_009)
"""Sizes of a name with which a size is tried."""

Contents = np.ndarray
"""An array of objects: a Size for each element, None for one that is not known. Truth values are 0 and 1."""

Shape = tuple[Size | None, ...] | None
"""The dimensions of a value, None for unknown ones; None for an unknown rank."""


def attribute_of(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, or the default of a node that lacks it."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


@dataclass(frozen=True, slots=True)
class Limit:
    """A size that is at most `most` for all inputs that the model accepts: the end of a slice of a table, say."""

    size: Size
    most: int


@dataclass(frozen=True)
class Given:
    """A node, and what is known of its inputs: their shapes and contents, None for absent and unknown ones.

    `constants` are the arrays of inputs that are constant. `limits` collects what shapes are computed under, by the
    texts of the sizes. `dims` has the texts of sizes that are dimensions of a value, and so not negative.
    If a size may only be assumed not to be negative, `floors` collects the least sizes of names with which it is not.
    """

    node: onnx.NodeProto
    opset: int
    shapes: Sequence[Shape]
    contents: Sequence[Contents | None]
    limits: dict[str, Limit] = field(default_factory=dict)
    constants: Sequence[np.ndarray | None] = ()
    dims: Container[str] = frozenset()
    floors: dict[str, int] | None = None

    def limit(self, size: Size, most: int) -> None:
        """Record that the model is only valid if `size` is at most `most`, if possible as a limit of a name."""
        least = (number(most) - size).least
        if least is not None and least >= 0:
            return
        if len(size.names) == 1 and size.name is None and is_rising(size):
            found = largest_within(size, most)
            if found is not None:
                (name,) = size.names
                size, most = named(name), found
        known = self.limits.get(size.text)
        if known is None or known.most > most:
            self.limits[size.text] = Limit(size, most)

    def assume_positive(self, size: Size) -> bool:
        """Assume that a size is 0 or more, if it depends on one name and is from some size of it on."""
        if self.floors is None or len(size.names) != 1:
            return False
        table = next((count for product, count in size.terms if not product), 0)
        taken = number(table) - size  # the part of a table of this length that a run leaves out
        if table > 0 and is_rising(taken) and largest_within(taken, table) is not None:
            self.limit(taken, table)
            return True
        (name,) = size.names
        negative = _negative(size, name)
        if negative and negative[-1] >= _TRIED - 1:
            return False
        self.floors[name] = max(self.floors.get(name, 1), negative[-1] + 1 if negative else 1)
        return True

    def is_positive(self, size: Size) -> bool:
        """Whether a size is 0 or more under the assumptions so far."""
        if size.least is not None and size.least >= 0:
            return True
        if not self.floors or len(size.names) != 1:
            return False
        (name,) = size.names
        return max(_negative(size, name), default=0) < self.floors.get(name, 1)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        return attribute_of(self.node, name, default)

    @property
    def first(self) -> tuple[Size | None, ...]:
        """The dimensions of the first input; a rule for shapes is called only if its rank is known."""
        return self.shape() or ()

    def shape(self, index: int = 0) -> Shape:
        """The shape of an input."""
        return self.shapes[index] if index < len(self.shapes) else None

    def has(self, index: int) -> bool:
        """Whether the input is present."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def sizes(self, index: int) -> list[Size] | None:
        """The elements of an input, if all are known."""
        found = self.contents[index] if index < len(self.contents) else None
        if found is None or any(e is None for e in found.flat):
            return None
        return list(found.flat)

    def elements(self, index: int) -> list[Size | None] | None:
        """The elements of an input, None for those that are not known; None if none is."""
        found = self.contents[index] if index < len(self.contents) else None
        return None if found is None else list(found.flat)

    def numbers(self, index: int, attribute: str | None = None) -> list[int] | None:
        """The elements of an input that do not depend on sizes, or an attribute's; None if they are not known."""
        if attribute is not None and not self.has(index):
            found = self.attribute(attribute)
            return None if found is None else [int(n) for n in found]
        found = self.sizes(index)
        if found is None or any(size.number is None for size in found):
            return None
        return [size.number or 0 for size in found]


@lru_cache(maxsize=1024)
def _negative(size: Size, name: str) -> tuple[int, ...]:
    """The sizes of its only name, of those that are tried, with which a size is negative."""
    return tuple(n for n in (*range(1, _TRIED), *_LARGE) if size.at({name: n}) < 0)


def known_numbers(shape: Shape) -> tuple[int, ...] | None:
    """The dimensions if none depends on sizes, else None."""
    if shape is None or any(d is None or d.number is None for d in shape):
        return None
    return tuple(d.number or 0 for d in shape if d is not None)
