"""The description of an attention kernel: sizes, operations on scores, and strides of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tvm_ffi

from heterocc.compiler.lower.arranged import strides_of
from heterocc.compiler.lower.cpu.sizes import Size, index, is_number, is_one, same


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument with its strides in elements along each outer loop, row and column.

    Numbers of "float16" and "int8", and bits of bfloat16, "uint16", are widened where they are read.
    `repeats`, if not empty, are the numbers of neighbouring places of each outer loop that read the same elements.
    """

    shape: tuple[Size, ...]
    dtype: str
    outer: tuple[Size, ...]
    row: Size
    column: Size
    repeats: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """An operation on scores: arithmetic with a number or operand, or replacement by `number` if the operand is true.

    "unless" replaces a score if the operand is false.
    """

    kind: Literal["add", "multiply", "divide", "where", "unless"]
    number: float | None = None
    operand: Operand | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """out[outer, row, column] = Σ over keys of softmax(steps(Σ over terms of q · k)) · v.

    The rows and columns of `q` are (row, term), of `k` (key, term), of `v` (key, column), of the operands of `steps`
    (row, key). Rows of results are zeros if `empty` is true, and with `empty_if_nan` if they would be NaN. A
    kernel's arguments are q, k, v, the operands of `steps` in their order, `empty`, out.
    """

    outer: tuple[Size, ...]
    rows: Size
    keys: Size
    terms: Size
    columns: Size
    q: Operand
    k: Operand
    v: Operand
    out: Operand
    steps: tuple[ScoreStep, ...]
    empty: Operand | None = None
    empty_if_nan: bool = False

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The kernel's arguments."""
        masks = [o for o in (*(s.operand for s in self.steps), self.empty) if o is not None]
        return (self.q, self.k, self.v, *masks, self.out)

    @property
    def has_a_key_for_each_row(self) -> bool:
        """Whether there are as many keys as rows, both of one size that is known only at run time."""
        return not is_number(self.rows) and tvm_ffi.structural_equal(index(self.rows), index(self.keys))

    @property
    def work(self) -> Size:
        """The number of multiply-adds."""
        return math.prod(self.outer) * self.rows * self.keys * (self.terms + self.columns)


def strided(shape: Sequence[Size], steps: Sequence[Size], outer: Sequence[Size], stored: tuple[Size, ...]) -> Operand:
    """An operand of a shape that is broadcast along `outer`."""
    steps = [0 if is_one(n) else s for n, s in zip(shape, steps, strict=True)]
    padded = (*[0] * (len(outer) + 2 - len(steps)), *steps)
    column = 1 if is_one(shape[-1]) else padded[-1]
    return Operand(stored, "float32", padded[:-2], padded[-2], column)


def broadcast(own: Sequence[Size], dtype: str, shape: Sequence[Size]) -> Operand | None:
    """A tensor of shape `own` that is broadcast to the shape of the scores; None if it cannot be."""
    if len(own) > len(shape) or dtype not in ("float32", "bool"):
        return None
    padded = (*[1] * (len(shape) - len(own)), *own)
    if any(not is_one(n) and not same(n, wide) for n, wide in zip(padded, shape, strict=True)):
        return None
    steps = [0 if is_one(n) else s for n, s in zip(padded, strides_of(padded), strict=True)]
    return Operand(tuple(own), dtype, tuple(steps[:-2]), steps[-2], steps[-1])
