"""A requested kernel: its tensors and its options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.sizes import Size, as_number

ELEMENT = emit.PARALLEL_WORK >> 16
"""The work of an element, in multiply-adds: 65536 elements are divided among threads."""

Shape = tuple[Size, ...]


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

    def around(self, axis: int) -> tuple[Size, Size, int]:
        """The elements of the first argument's dimensions before an axis, its length, and the elements after it."""
        shape = self.shapes[0]
        return math.prod(shape[:axis]), shape[axis], as_number(math.prod(shape[axis + 1 :]))
