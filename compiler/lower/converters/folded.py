"""One-sided Fourier transforms of real frames by products of a quarter of the terms, on CPUs.

The cosine of a frequency is even about the middle of a frame, the sine odd, and both are even or odd about a quarter of
it as the frequency is. So samples that meet factors of the same size are added or subtracted first: each of four
products, of cosines and sines with even and odd frequencies, has a quarter of the terms and half of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import nest
from heterocc.compiler.lower.converters.computed.numbers import statements
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dtype_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64

op = relax.op

LEAST = 64
"""The shortest frame that is folded: products of shorter ones take less than what folding adds."""

_PRODUCTS = 4


def can_fold(ctx: Context, data: relax.Expr, size: int) -> bool:
    """Whether one-sided transforms of `size` real numbers are folded."""
    return ctx.backend == "cpu" and dtype_of(data) == "float32" and size >= LEAST and size % 4 == 0


def folded_transforms(
    ctx: Context, signal: relax.Expr, frames: tuple[Extent, Extent], size: int, step: int, window: np.ndarray
) -> relax.Expr:
    """The transforms [batch, count, size // 2 + 1, 2] of frames that are `step` apart in a signal [batch, samples].

    `frames` are batch and count. A window that is shorter than `size` is continued with zeros.
    """
    parts = ctx.bb.emit(_folded(ctx, signal, frames, size, step, window))
    quarter = size // 4
    found = []
    for number, matrix in enumerate(_matrices(size)):
        part = op.strided_slice(parts, [0], [number], [number + 1], assume_inbound=True)
        part = op.reshape(part, relax.ShapeExpr([as_int64(d) for d in (*frames, quarter + 1)]))
        found.append(ctx.bb.emit(op.matmul(ctx.bb.emit(part), constant(matrix.astype(np.float32)))))
    return _interleaved(ctx, found, frames, quarter)


def _matrices(size: int) -> Sequence[np.ndarray]:
    """The factors [size / 4 + 1, size / 4 + 1] of cosines of even and odd frequencies, then of sines."""
    terms, half = np.arange(size // 4 + 1), np.arange(size // 4 + 1)
    even, odd = (2 * np.pi * (np.outer(terms, 2 * half + shift) % size) / size for shift in (0, 1))
    return np.cos(even), np.cos(odd), -np.sin(even), -np.sin(odd)


def _folded(
    ctx: Context, signal: relax.Expr, frames: tuple[Extent, Extent], size: int, step: int, window: np.ndarray
) -> relax.Expr:
    """The terms [4, batch, count, size / 4 + 1] of the products."""
    half, quarter, taken = size // 2, size // 4, len(window)
    zero = tirx.const(0, "float32")
    # Where one of the four samples of a place becomes zero, or is not zero any more.
    ends = {size - taken + 1, half - taken + 1, taken, taken - half}
    cuts = [1, *sorted(c for c in ends if 1 < c < quarter), quarter]
    parts = list(pairwise(cuts))

    def compute(given: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
            def frame(i: Sequence[tirx.Var]) -> list[tirx.Stmt]:
                item, number = i

                def sample(place: tirx.Expr, example: int) -> tirx.Expr:
                    if example >= taken:
                        return zero
                    return ins[0][item, number * as_int64(step) + place] * ins[1][place]

                def store(place: tirx.Expr, values: Sequence[tirx.Expr]) -> list[tirx.Stmt]:
                    return [
                        tirx.BufferStore(outs[0], value, [as_int64(part), item, number, place])
                        for part, value in enumerate(values)
                    ]

                def fours(begin: int, n: tirx.Var) -> list[tirx.Stmt]:
                    """The terms at a place in a part of the quarter in which the same samples are zero."""
                    place = n + as_int64(begin)
                    first, last = sample(place, begin), sample(as_int64(size) - place, size - begin)
                    before, after = (sample(as_int64(half) + sign * place, half + sign * begin) for sign in (-1, 1))
                    even, other_even = first + last, before + after
                    odd, other_odd = first - last, before - after
                    return store(place, [even + other_even, even - other_even, odd - other_odd, odd + other_odd])

                start, middle, one, other = (sample(as_int64(p), p) for p in (0, half, quarter, size - quarter))
                return [
                    *(nest([as_int64(end - begin)], partial(_at_first, partial(fours, begin))) for begin, end in parts),
                    *store(as_int64(0), [start + middle, start - middle, zero, zero]),
                    *store(as_int64(quarter), [one + other, zero, zero, one - other]),
                ]

            return nest(wanted[1:3], frame)

        return statements(given, wanted, body, "folded", "float32")

    weights = constant(window.astype(np.float32))
    return emit_sized(
        ctx.bb, compute, [signal, weights], [], (_PRODUCTS, *frames, quarter + 1), "float32", "folded", opaque=True
    )


def _at_first(lines: Callable[[tirx.Var], list[tirx.Stmt]], places: Sequence[tirx.Var]) -> list[tirx.Stmt]:
    return lines(places[0])


def _interleaved(ctx: Context, found: Sequence[relax.Expr], frames: tuple[Extent, Extent], quarter: int) -> relax.Expr:
    """The results of the products in the order of frequencies, real and imaginary parts beside each other."""

    def compute(given: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
            def frame(i: Sequence[tirx.Var]) -> list[tirx.Stmt]:
                def put(k: tirx.Expr, shift: int) -> list[tirx.Stmt]:
                    place = k * as_int64(2) + as_int64(shift)
                    return [
                        tirx.BufferStore(outs[0], ins[2 * part + shift][*i, k], [*i, place, as_int64(part)])
                        for part in range(2)
                    ]

                pairs = nest([as_int64(quarter)], lambda k: [*put(k[0], 0), *put(k[0], 1)])
                return [pairs, *put(as_int64(quarter), 0)]

            return nest(wanted[:2], frame)

        return statements(given, wanted, body, "frequencies", "float32")

    shape = (*frames, 2 * quarter + 1, 2)
    return emit_sized(ctx.bb, compute, found, [], shape, "float32", "frequencies", opaque=True)
