"""Loops combined to one axis, and offsets in memory as linear forms of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from heterocc.compiler.lower.cpu.sizes import (
    Size,
    all_equal,
    are_equal,
    divisor,
    exceeds,
    is_number,
    is_one,
    moves,
    size_of,
)
from heterocc.compiler.lower.cpu.sizes import index as index


def shape_of(buffer: tirx.Buffer) -> tuple[Size, ...] | None:
    """A buffer's shape; None if it is not known."""
    sizes = [size_of(n) for n in buffer.shape]
    return None if any(n is None for n in sizes) else tuple(n for n in sizes if n is not None)


def flat_place(indices: Sequence[tirx.Expr], buffer: tirx.Buffer) -> tirx.Expr:
    """The place of an element in the memory of a buffer."""
    total: tirx.Expr = index(0)
    for value, extent in zip(indices, buffer.shape, strict=True):
        total = total * extent + value
    return total


def overlapping(start: tirx.Expr, length: Size, lanes: int) -> tirx.Expr:
    """The start of a vector of a row; a last one that would exceed its end overlaps the one before."""
    if is_number(length) and length <= lanes:
        return index(0)
    return tirx.min(start, index(length - lanes)) if exceeds(length, lanes) else start


@dataclass(frozen=True, slots=True)
class Linear:
    """constant + Σ coefficient · variable; `steps` are the coefficients of the given variables."""

    constant: Size
    steps: tuple[Size, ...]

    def is_same(self, other: Linear) -> bool:
        """Whether this is the same form; that coefficients known only at run time are equal is assumed."""
        return all_equal((self.constant, *self.steps), (other.constant, *other.steps))


def is_dense(step: Size | None) -> bool:
    """Whether a stride is 1 or 0, so that vectors are loads or broadcasts. One that is not a number is more."""
    return step is not None and is_number(step) and step in (0, 1)


def linear(expr: tirx.Expr, variables: Sequence[tirx.Var]) -> Linear | None:
    """An index as a linear form of `variables`, None if it is not one."""
    none = (0,) * len(variables)
    if isinstance(expr, tirx.IntImm):
        return Linear(int(expr), none)
    if isinstance(expr, tirx.Var):
        steps = tuple(int(expr.same_as(v)) for v in variables)
        return Linear(0, steps) if any(steps) else _constant(expr, none)
    if isinstance(expr, tirx.Cast):
        return linear(expr.value, variables)
    if not isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
        return _constant(expr, none)
    a, b = linear(expr.a, variables), linear(expr.b, variables)
    if a is None or b is None:
        return None
    if isinstance(expr, tirx.Mul):
        if any(map(moves, a.steps)):
            a, b = b, a
        if any(map(moves, a.steps)):
            return None
        return Linear(a.constant * b.constant, tuple(a.constant * s for s in b.steps))
    sign = 1 if isinstance(expr, tirx.Add) else -1
    return Linear(a.constant + sign * b.constant, tuple(x + sign * y for x, y in zip(a.steps, b.steps, strict=True)))


def _constant(expr: tirx.Expr, none: tuple[int, ...]) -> Linear | None:
    """A size that is known only at run time as a linear form; None for any other expression."""
    size = size_of(expr)
    return None if size is None else Linear(size, none)


def offset(indices: Sequence[tirx.Expr], buffer: tirx.Buffer, variables: Sequence[tirx.Var]) -> Linear | None:
    """The place in memory, in elements, of an access at `indices`; None if it is not linear in `variables`."""
    shape = shape_of(buffer)
    if shape is None:
        return None
    constant: Size = 0
    steps: list[Size] = [0] * len(variables)
    pitch: Size = 1
    for extent, expr in zip(reversed(shape), reversed(list(indices)), strict=True):
        form = linear(expr, variables)
        if form is None:
            return None
        constant += pitch * form.constant
        steps = [s + pitch * t for s, t in zip(steps, form.steps, strict=True)]
        pitch *= extent
    return Linear(constant, tuple(steps))


@dataclass(frozen=True, slots=True)
class Axis:
    """Loops combined to one axis, the last one fastest: their numbers among the block's loops, and their extents.

    Loops that run once may be left out of every axis.
    """

    loops: tuple[int, ...] = ()
    extents: tuple[Size, ...] = ()

    @property
    def length(self) -> Size:
        """The length of the axis."""
        return prod(self.extents)

    def step(self, form: Linear) -> Size | None:
        """The stride in memory along the axis; None if it is not constant, or not for all sizes."""
        if not self.loops:
            return 0
        step = form.steps[self.loops[-1]]
        pitch = step
        for loop, inner in zip(self.loops[-2::-1], self.extents[:0:-1], strict=True):
            pitch *= inner
            if not are_equal(form.steps[loop], pitch):
                return None
        return step

    def stride(self, form: Linear) -> Size:
        """The stride in memory along the axis, which has one."""
        step = self.step(form)
        assert step is not None
        return step

    def split(self, place: tirx.Expr) -> list[tuple[int, tirx.Expr]]:
        """The values of the loops at a place on the axis."""
        values: list[tuple[int, tirx.Expr]] = []
        pitch: Size = 1
        for number in range(len(self.loops) - 1, -1, -1):
            part = place if is_one(pitch) else tirx.floordiv(place, divisor(pitch))
            if number:
                part = tirx.floormod(part, divisor(self.extents[number]))
            values.append((self.loops[number], part))
            pitch *= self.extents[number]
        return values


Place = Sequence[tuple[Axis, tirx.Expr]]
"""A value for each axis."""


def at(form: Linear, place: Place) -> tirx.Expr | None:
    """The offset at a place, None if it is not linear in the axes."""
    total: tirx.Expr = index(form.constant)
    for axis, value in place:
        step = axis.step(form)
        if step is None:
            return None
        if moves(step):
            total = total + (value if is_one(step) else value * index(step))
    return total


def offset_at(form: Linear, place: Place) -> tirx.Expr:
    """The offset at a place in whose axes it is linear."""
    offset = at(form, place)
    assert offset is not None
    return offset


def loop_values(place: Place, variables: Sequence[tirx.Var]) -> list[tuple[tirx.Var, tirx.Expr]]:
    """The value of each loop at a place; zero for loops that are not part of an axis, which run once."""
    values = dict(pair for axis, value in place for pair in axis.split(value))
    return [(var, values.get(number, index(0))) for number, var in enumerate(variables)]
