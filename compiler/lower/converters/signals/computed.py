"""Fourier transforms of a computed length, or along a computed axis: DFT, STFT."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from heterocc.compiler.lower.converters.computed.numbers import (
    element,
    product,
    results,
    sizes,
    unravelled,
    vector,
    whole,
)
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.signals.fast import Buffers, Pair, Sizes, Transforms, computed, ravelled
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of


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

    def numbers(self, ins: Buffers) -> list[tirx.Expr]:
        """The shape of the results."""
        found = [
            tirx.Select(self.axis(ins) == whole(d), self.count(ins), size.astype("int64"))
            for d, size in enumerate(ins[0].shape[:-1])
        ]
        return [*found, whole(1 if self.to_real else 2)]


@sizes("DFT")
def _sizes(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
    dft = _Transform(ctx, data, *given)

    return vector(ctx, dft.tensors, dft.rank, dft.numbers, dft.demands)


@results("DFT")
def transformed(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
    """DFT along an axis that may be computed."""
    dft, dtype = _Transform(ctx, data, *given), _dtype(data)

    def others(ins: Buffers, shape: Sizes) -> list[tirx.Expr]:
        """The sizes of the rows, with 1 at the axis."""
        return [tirx.Select(dft.axis(ins) == whole(d), whole(1), s.astype("int64")) for d, s in enumerate(shape[:-1])]

    def spot(ins: Buffers, shape: Sizes, row: tirx.Expr, place: tirx.Expr) -> list[tirx.Expr]:
        found = unravelled(row, others(ins, shape))
        return [tirx.Select(dft.axis(ins) == whole(d), place, v) for d, v in enumerate(found)]

    def read(ins: Buffers, shape: Sizes, row: tirx.Expr, k: tirx.Expr) -> Pair:
        at = spot(ins, shape, row, k)
        real, imaginary = _number(ins[0], at, is_complex=dft.complex)
        if not dft.to_real:
            return real, imaginary
        # A frequency stands for itself and its negative, except those that are their own negatives.
        own = tirx.floormod(k * whole(2), tirx.max(dft.length(ins), whole(1))) == whole(0)
        times = tirx.Select(own, tirx.const(1, dtype), tirx.const(2, dtype))
        return real * times, imaginary * times

    def taken(ins: Buffers) -> tirx.Expr:
        size = dft.length(ins)
        return tirx.min(tirx.floordiv(size, whole(2)) + whole(1) if dft.to_real else size, dft.along(ins))

    def most(shape: Sizes) -> tirx.Expr:
        along = shape[:-1] if dft.has_axis else [shape[dft.fixed]]
        return sum(along, whole(0)) * whole(2 if dft.half else 1)

    transforms = Transforms(
        tensors=dft.tensors,
        # The sizes of the result may be known without the axis and the length.
        demands=lambda ins, shape: [*dft.demands(ins), _as_computed(dft.numbers(ins), shape)],
        length=lambda ins: tirx.max(dft.length(ins), whole(1)),
        rows=lambda ins, shape: product(others(ins, shape)),
        taken=taken,
        results=lambda ins, shape: dft.on_axis(ins, [s.astype("int64") for s in shape[:-1]]),
        read=read,
        place=lambda ins, shape, row, k: ravelled([*spot(ins, shape, row, k), whole(0)], shape),
        most=most,
        inverse=dft.inverse,
        real=dft.to_real,
    )
    return computed(ctx, transforms, dtype)


def _dtype(data: relax.Expr) -> str:
    dtype = dtype_of(data)
    if dtype not in ("float32", "float64"):
        raise NotImplementedError(f"transforms of {dtype} need a length that is known")
    return dtype


def _number(tensor: tirx.Buffer, at: Sequence[tirx.Expr], *, is_complex: bool) -> Pair:
    """A real or complex number of a tensor, whose last dimension has its parts, if there is one beside `at`."""
    if len(tensor.shape) == len(at):
        return tensor[tuple(at)], tirx.const(0, tensor.dtype)
    imaginary = tensor[(*at, whole(1))] if is_complex else tirx.const(0, tensor.dtype)
    return tensor[(*at, whole(0))], imaginary


def _as_computed(numbers: Sizes, shape: Sizes) -> tuple[tirx.Expr, str]:
    same = [n.astype("int64") == s.astype("int64") for n, s in zip(numbers, shape, strict=True)]
    return tirx.all(*same), "its result has another shape than the model states"


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
    """STFT of frames whose length, step or window may be computed."""
    stft, dtype = _Frames(ctx, data, *given), _dtype(data)

    def read(ins: Buffers, shape: Sizes, row: tirx.Expr, k: tirx.Expr) -> Pair:
        item, frame = unravelled(row, shape[:2])
        real, imaginary = _number(ins[0], (item, frame * stft.step(ins) + k), is_complex=stft.complex)
        if stft.window is None:
            return real, imaginary
        weight = ins[stft.window][k].astype(dtype)
        return real * weight, imaginary * weight

    transforms = Transforms(
        tensors=stft.tensors,
        demands=lambda ins, shape: [*stft.demands(ins), _as_computed(stft.numbers(ins), shape)],
        length=stft.length,
        rows=lambda _, shape: product(shape[:2]),
        taken=stft.length,
        results=lambda _, shape: shape[2].astype("int64"),
        read=read,
        place=lambda _, shape, row, k: (row * shape[2].astype("int64") + k) * whole(2),
        most=lambda shape: shape[2] * whole(2 if stft.half else 1),
        inverse=False,
        real=False,
    )
    return computed(ctx, transforms, dtype)
