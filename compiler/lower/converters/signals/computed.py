"""Fourier transforms of a computed length, or along a computed axis: DFT, STFT."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax, tirx

from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.computed.numbers import (
    element,
    loop,
    product,
    results,
    sizes,
    table,
    unravelled,
    vector,
    whole,
    within_limit,
)
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of

Buffers = Sequence[tirx.Buffer]


class _Transform:
    """A DFT: its tensors, and its axis, length and number of results as expressions of their elements."""

    def __init__(
        self, ctx: Context, data: relax.Expr, length: relax.Expr | None = None, axis: relax.Expr | None = None
    ) -> None:
        self.rank = rank_of(data)
        self.tensors = [v for v in (data, length, axis) if v is not None]
        self.has_length, self.has_axis = length is not None, axis is not None
        self.fixed = int(ctx.attrs.get("axis", -2 if ctx.opset >= 20 else 1)) % self.rank
        self.inverse, self.half = bool(ctx.attrs.get("inverse", 0)), bool(ctx.attrs.get("onesided", 0))
        self.to_real = self.inverse and self.half
        self.complex = dims_of(data)[-1] == 2
        if dims_of(data)[-1] not in (1, 2):
            raise NotImplementedError("the last dimension is not that of real and imaginary parts")
        if self.half and self.inverse != self.complex:
            kind = "inverse transform of real" if self.inverse else "transform of complex"
            raise NotImplementedError(f"a one-sided {kind} numbers is not supported")

    def axis(self, ins: Buffers) -> tirx.Expr:
        if not self.has_axis:
            return whole(self.fixed)
        found = element(ins[1 + self.has_length])
        return tirx.Select(found < whole(0), found + whole(self.rank), found)

    def demands(self, ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        """What the axis and the length have to meet."""
        inside = tirx.all(self.axis(ins) >= whole(0), self.axis(ins) < whole(self.rank - 1))
        return [
            (inside, "the axis is not one of the signal"),
            (self.length(ins) > whole(0), "the length is not positive"),
        ]

    def along(self, ins: Buffers) -> tirx.Expr:
        """The size of the data along the axis."""
        return self.on_axis(ins, [d.astype("int64") for d in ins[0].shape[:-1]])

    def on_axis(self, ins: Buffers, numbers: Sequence[tirx.Expr]) -> tirx.Expr:
        """The number of those, one for each axis, that is at the axis of the transform."""
        found, axis = whole(1), self.axis(ins)
        for d, number in enumerate(numbers):
            found = tirx.Select(axis == whole(d), number, found)
        return found

    def length(self, ins: Buffers) -> tirx.Expr:
        if self.has_length:
            return element(ins[1])
        size = self.along(ins)
        return whole(2) * (size - whole(1)) if self.to_real else size

    def count(self, ins: Buffers) -> tirx.Expr:
        """The number of results along the axis."""
        size = self.length(ins)
        return tirx.floordiv(size, whole(2)) + whole(1) if self.half and not self.inverse else size


@sizes("DFT")
def _sizes(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
    dft = _Transform(ctx, data, *given)

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        found = [
            tirx.Select(dft.axis(ins) == whole(d), dft.count(ins), size.astype("int64"))
            for d, size in enumerate(ins[0].shape[:-1])
        ]
        return [*found, whole(1 if dft.to_real else 2)]

    return vector(ctx, dft.tensors, dft.rank, numbers, dft.demands)


@results("DFT")
def transformed(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
    """DFT by its definition, term by term."""
    dft, dtype = _Transform(ctx, data, *given), dtype_of(data)
    if dtype not in ("float32", "float64"):
        raise NotImplementedError(f"transforms of {dtype} need a length that is known")

    def write(ins: Buffers, out: tirx.Buffer) -> tirx.Stmt:
        size = tirx.max(dft.length(ins), whole(1))
        most = tirx.floordiv(size, whole(2)) + whole(1) if dft.to_real else size
        scale = tirx.const(1, dtype) / size.astype(dtype) if dft.inverse else tirx.const(1, dtype)

        def one(i: tirx.Var) -> tirx.Stmt:
            spot = unravelled(i, out.shape)
            place = dft.on_axis(ins, spot[:-1])

            def term(k: tirx.Var) -> tirx.Stmt:
                at = [tirx.Select(dft.axis(ins) == whole(d), k, v) for d, v in enumerate(spot[:-1])]
                real = ins[0][(*at, whole(0))]
                imaginary = ins[0][(*at, whole(1))] if dft.complex else tirx.const(0, dtype)
                found = _product(real, imaginary, spot[-1], place * k, size, dft.inverse, dtype)
                if dft.to_real:
                    # A frequency stands for itself and its negative, except those that are their own negatives.
                    own = tirx.floormod(k * whole(2), size) == whole(0)
                    found = found * tirx.Select(own, tirx.const(1, dtype), tirx.const(2, dtype))
                return tirx.BufferStore(out, out[tuple(spot)] + found * scale, spot)

            start = tirx.BufferStore(out, tirx.const(0, dtype), spot)
            return tirx.SeqStmt([start, loop(tirx.min(most, dft.along(ins)), term)])

        # The sizes of the result may be known without the axis and the length.
        demands = [*dft.demands(ins), _few_terms(out, tirx.min(most, dft.along(ins)))]
        return _checked(ctx, demands, loop(product(out.shape), one))

    return table(ctx, dft.tensors, ctx.result(), write, dtype, "dft")


MOST_TERMS = 1 << 29
"""The most terms of a transform: 16,384 points, or half a minute. One request must not occupy a service for longer."""


def _few_terms(out: tirx.Buffer, terms: tirx.Expr) -> tuple[tirx.Expr, str]:
    """The limit of the work of all results, each a sum of these terms."""
    return within_limit([*out.shape, terms], MOST_TERMS), f"it would have more than {MOST_TERMS} terms, the limit"


def _checked(ctx: Context, demands: Sequence[tuple[tirx.Expr, str]], body: tirx.Stmt) -> tirx.Stmt:
    return tirx.SeqStmt([*(asserted(ctx, *demand) for demand in demands), body])


def _product(
    real: tirx.Expr, imaginary: tirx.Expr, part: tirx.Expr, turns: tirx.Expr, size: tirx.Expr, inverse: bool, dtype: str
) -> tirx.Expr:
    """The real or imaginary part of a complex number times the root of unity with this number of turns."""
    # The remainder keeps angles small, and thereby exact.
    angle = tirx.floormod(turns, size).astype("float64") / size.astype("float64")
    angle = angle * tirx.const((2 if inverse else -2) * math.pi, "float64")
    cos, sin = tirx.cos(angle).astype(dtype), tirx.sin(angle).astype(dtype)
    return tirx.Select(part == whole(0), real * cos - imaginary * sin, real * sin + imaginary * cos)


class _Frames:
    """An STFT: its tensors, and its frames as expressions of their elements."""

    def __init__(
        self,
        ctx: Context,
        data: relax.Expr,
        step: relax.Expr,
        window: relax.Expr | None = None,
        length: relax.Expr | None = None,
    ) -> None:
        self.tensors = [v for v in (data, step, window, length) if v is not None]
        self.window = None if window is None else 2
        self.length_at = None if length is None else len(self.tensors) - 1
        if window is None and length is None:
            raise NotImplementedError("it has neither a window nor a length of its frames")
        self.half, self.complex = bool(ctx.attrs.get("onesided", 1)), dims_of(data)[2:] == (2,)
        if self.half and self.complex:
            raise NotImplementedError("a one-sided transform of complex numbers is not supported")

    def demands(self, ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        """What the step and the length of a frame have to meet."""
        size, samples = self._given_length(ins), ins[0].shape[1].astype("int64")
        found = [
            (element(ins[1]) > whole(0), "the step is not positive"),
            (size > whole(0), "the length of a frame is not positive"),
            (size <= samples, "a frame is longer than the signal"),
        ]
        if self.window is not None and self.length_at is not None:
            same = tirx.EQ(ins[self.window].shape[0].astype("int64"), size)
            found.append((same, "the window is not as long as a frame"))
        return found

    def _given_length(self, ins: Buffers) -> tirx.Expr:
        return element(ins[self.length_at]) if self.length_at is not None else ins[2].shape[0].astype("int64")

    def length(self, ins: Buffers) -> tirx.Expr:
        return tirx.max(self._given_length(ins), whole(1))

    def step(self, ins: Buffers) -> tirx.Expr:
        return tirx.max(element(ins[1]), whole(1))

    def numbers(self, ins: Buffers) -> list[tirx.Expr]:
        size = self.length(ins)
        frames = tirx.floordiv(ins[0].shape[1].astype("int64") - size, self.step(ins)) + whole(1)
        bins = tirx.floordiv(size, whole(2)) + whole(1) if self.half else size
        return [ins[0].shape[0], tirx.max(frames, whole(0)), bins, whole(2)]


@sizes("STFT")
def _stft_sizes(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
    stft = _Frames(ctx, data, *given)

    return vector(ctx, stft.tensors, 4, stft.numbers, stft.demands)


@results("STFT")
def frames_transformed(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
    """STFT by its definition, term by term."""
    stft, dtype = _Frames(ctx, data, *given), dtype_of(data)
    if dtype not in ("float32", "float64"):
        raise NotImplementedError(f"transforms of {dtype} are not supported")

    def write(ins: Buffers, out: tirx.Buffer) -> tirx.Stmt:
        size = stft.length(ins)

        def one(i: tirx.Var) -> tirx.Stmt:
            spot = unravelled(i, out.shape)
            first = spot[1] * stft.step(ins)

            def term(k: tirx.Var) -> tirx.Stmt:
                at = (spot[0], first + k)
                real = ins[0][(*at, whole(0))] if len(ins[0].shape) > 2 else ins[0][at]
                imaginary = ins[0][(*at, whole(1))] if stft.complex else tirx.const(0, dtype)
                if stft.window is not None:
                    weight = ins[stft.window][k].astype(dtype)
                    real, imaginary = real * weight, imaginary * weight
                found = _product(real, imaginary, spot[3], spot[2] * k, size, False, dtype)
                return tirx.BufferStore(out, out[tuple(spot)] + found, spot)

            return tirx.SeqStmt([tirx.BufferStore(out, tirx.const(0, dtype), spot), loop(size, term)])

        return _checked(ctx, [*stft.demands(ins), _few_terms(out, size)], loop(product(out.shape), one))

    return table(ctx, stft.tensors, ctx.result(), write, dtype, "stft")
