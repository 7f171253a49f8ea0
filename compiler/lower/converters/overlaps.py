"""Sums of the elements of windows that overlap in an image, the reverse of taking windows out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along an axis of an image of `places`: each begins `stride` after the one before it.

    Their elements are `dilation` apart; the first window begins `before` the image.
    """

    stride: int
    dilation: int
    before: int
    places: int


def added_columns(ctx: Context, columns: relax.Expr, axes: Sequence[Windows]) -> relax.Expr:
    """The image [batch, channels, *places] of `columns` [batch, channels, *taps, *windows]."""
    batch, channels, *inner = dims_of(columns)
    taps, counts = inner[: len(axes)], inner[len(axes) :]
    common = [math.gcd(a.stride, a.dilation) for a in axes]
    # Taps of one place: their distances from it are multiples of the stride.
    steps = [a.stride // c for a, c in zip(axes, common, strict=True)]

    def compute(x: te.Tensor) -> te.Tensor:
        turns = [te.reduce_axis((0, -(-n // step)), "turn") for n, step in zip(taps, steps, strict=True)]

        def at(*i: tirx.Var) -> tirx.Expr:
            conditions, taken, windows = [], [], []
            for d, (axis, step) in enumerate(zip(axes, steps, strict=True)):
                reach, tap = i[2 + d] + axis.before, turns[d].var
                if step > 1:
                    inverse = pow(axis.dilation // common[d], -1, step)
                    tap = tap * step + tirx.floormod(tirx.floordiv(reach, common[d]) * inverse, step)
                    conditions.append(tap < taps[d])
                if common[d] > 1:
                    conditions.append(tirx.floormod(reach, common[d]).equal(0))
                window = tirx.floordiv(reach - tap * axis.dilation, axis.stride)
                conditions += [window >= 0, window < counts[d]]
                taken.append(tap)
                windows.append(window)
            zero = tirx.const(0, dtype_of(columns))
            value = x(i[0], i[1], *taken, *windows)
            return te.sum(tirx.if_then_else(tirx.all(*conditions), value, zero), axis=turns)

        return te.compute((batch, channels, *(a.places for a in axes)), at, name="col2im")

    return ctx.bb.emit_te(compute, columns, primfunc_name_hint="col2im")
