"""A requested kernel: its tensors and its options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.sizes import Size, as_number

ELEMENT = emit.PARALLEL_WORK >> 16
"""The work of an element, in multiply-adds: 65536 elements are divided among threads."""

Shape = tuple[Size, ...]


class Around(NamedTuple):
    """A shape as seen from an axis: the elements of the dimensions before it, its length, and those after it."""

    outer: Size
    length: Size
    inner: int


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a kernel, and the shapes and dtypes of its arguments: inputs, then results."""

    options: Mapping[str, object]
    shapes: Sequence[Shape]
    dtypes: Sequence[str]
    isa: Isa

    def number(self, name: str) -> int:
        """An option that is an integer or a flag."""
        return int(str(self.options[name]))

    def text(self, name: str) -> str:
        """An option that is a string."""
        return str(self.options[name])

    def around(self, axis: int) -> Around:
        """The shape of the first argument as seen from an axis."""
        shape = self.shapes[0]
        return Around(math.prod(shape[:axis]), shape[axis], as_number(math.prod(shape[axis + 1 :])))


def rows(extent: Size, elements: Size) -> AbstractContextManager[tirx.Expr]:
    """A loop, shared by the threads if there are enough elements."""
    return emit.shared_loop(extent, elements * ELEMENT)
