"""Converters of Fourier transforms, as products with the transform's matrix.

A product of n inputs with an n × n matrix takes n² operations, against n · log n of a fast transform, but runs at the
speed of products. Its matrix is computed in float64. Real frames are folded first (`folded.py`).
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.folded import can_fold, folded_transforms
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.signals.computed import frames_transformed, transformed
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, shape_of
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import as_int64

op = relax.op

_MOST_PLACES = 1 << 22
"""The most samples of all frames that are gathered by stored places."""

MOST = 2048
"""The longest transform: its matrix has 4 · n² numbers."""


@converter("DFT")
def dft(ctx: Context, data: relax.Expr, length: relax.Expr | None = None, axis: relax.Expr | None = None) -> relax.Expr:
    """DFT of real or complex numbers [batch, …, 1 or 2] along one axis, also inverse or one-sided."""
    if any(v is not None and not ctx.is_known(v) for v in (length, axis)):
        return transformed(ctx, data, length, axis)
    shape = dims_of(data)
    rank = len(shape)
    if axis is not None:
        along = int(ctx.known(axis).flat[0])
    else:
        along = int(ctx.attrs.get("axis", -2 if ctx.opset >= 20 else 1))
    if not -rank <= along < rank or along % rank == rank - 1:
        raise NotImplementedError(f"axis {along} is not one of the signal")
    along %= rank
    if not isinstance(shape[along], int) or not isinstance(shape[-1], int):
        return transformed(ctx, data, length, axis)
    inverse, half = bool(ctx.attrs.get("inverse", 0)), bool(ctx.attrs.get("onesided", 0))
    to_real = inverse and half
    usual = 2 * (shape[along] - 1) if to_real else shape[along]
    size = usual if length is None else int(ctx.known(length).flat[0])
    if to_real and shape[-1] != 2:
        raise NotImplementedError("a one-sided inverse transform of real numbers is not supported")
    if half and not inverse and shape[-1] != 1:
        raise NotImplementedError("a one-sided transform of complex numbers is not supported")
    if not 0 < size <= MOST:
        raise NotImplementedError(f"a transform of length {size} is not supported, only those up to {MOST}")
    taken = min(
        size // 2 + 1 if to_real else size, shape[along]
    )  # a longer input is cut, a shorter one continued with zeros
    if taken < shape[along]:
        data = ctx.bb.emit(op.strided_slice(data, [along], [0], [taken], assume_inbound=True))
    outputs = size // 2 + 1 if half and not inverse else size
    parts = 1 if to_real else 2
    if to_real:
        matrix = _real_matrix(size, taken)
    else:
        matrix = _matrix(size, taken, outputs, inverse)
        if shape[-1] == 1:
            matrix = matrix.reshape(taken, 2, -1)[:, 0]
    others = [d for d in range(rank - 1) if d != along]
    rows = [shape[d] for d in others]
    flat = ctx.bb.emit(op.permute_dims(data, [*others, along, rank - 1]))
    order = [*range(along), rank - 2, *range(along, rank - 2), rank - 1]
    if half and not inverse and can_fold(ctx, data, size):
        items, count = math.prod(map(as_int64, rows[:-1]), start=as_int64(1)), as_int64(rows[-1] if rows else 1)
        flat = ctx.bb.emit(op.reshape(flat, relax.ShapeExpr([items, count * as_int64(taken)])))
        found = ctx.bb.emit(folded_transforms(ctx, flat, (items, count), size, taken, np.ones(taken)))
        found = ctx.bb.emit(op.reshape(found, relax.ShapeExpr([as_int64(d) for d in (*rows, outputs, parts)])))
        return op.permute_dims(found, order)
    together = [int(np.prod(rows, dtype=np.int64))] if all(isinstance(d, int) for d in rows) else rows
    flat = ctx.bb.emit(op.reshape(flat, (*together, taken * shape[-1])))
    product = ctx.bb.emit(op.matmul(flat, constant(matrix.astype(dtype_of(data)))))
    split = ctx.bb.emit(op.reshape(product, (*rows, outputs, parts)))
    return op.permute_dims(split, order)


@converter("STFT")
def stft(
    ctx: Context, data: relax.Expr, step: relax.Expr, window: relax.Expr | None = None, length: relax.Expr | None = None
) -> relax.Expr:
    """STFT of real or complex signals [batch, samples, 1 or 2]: the transforms of frames that are `step` apart."""
    known = all(v is None or ctx.is_known(v) for v in (step, length))
    if known and ctx.is_symbolic_data(data) and (found := _of_any_length(ctx, data, step, window, length)) is not None:
        return found
    if not known or ctx.is_symbolic_data(data) or (window is not None and ctx.is_symbolic_data(window)):
        return frames_transformed(ctx, data, step, window, length)
    batch, samples, *rest = shape_of(data)
    parts = rest[0] if rest else 1
    if length is None and window is None:
        raise NotImplementedError("it has neither a window nor a length of its frames")
    size = int(ctx.known(length).flat[0]) if length is not None else shape_of(window)[0]
    if not 0 < size <= min(MOST, samples):
        raise NotImplementedError(f"frames of {size} of {samples} samples are not supported, only those up to {MOST}")
    half = bool(ctx.attrs.get("onesided", 1))
    if half and parts == 2:
        raise NotImplementedError("a one-sided transform of complex numbers is not supported")
    starts = np.arange(0, samples - size + 1, int(ctx.known(step).flat[0]))
    weights = np.ones(size) if window is None else ctx.array(window)
    if half and weights is not None and len(weights) == size and can_fold(ctx, data, size):
        signal = ctx.bb.emit(op.reshape(data, (batch, samples)))
        return folded_transforms(ctx, signal, (batch, len(starts)), size, int(ctx.known(step).flat[0]), weights)
    if len(starts) * size > _MOST_PLACES:
        raise NotImplementedError(f"{len(starts)} frames of {size} samples are too many")
    places = constant((starts[:, None] + np.arange(size)).ravel())
    frames = ctx.bb.emit(op.take(op.reshape(data, (batch, samples, parts)), places, 1))
    frames = ctx.bb.emit(op.reshape(frames, (batch, len(starts), size, parts)))
    if window is not None:
        frames = ctx.bb.emit(op.multiply(frames, op.reshape(as_dtype(window, dtype_of(data)), (1, 1, size, 1))))
    outputs = size // 2 + 1 if half else size
    matrix = _matrix(size, size, outputs, False)
    if parts == 1:
        matrix = matrix.reshape(size, 2, -1)[:, 0]
    rows = ctx.bb.emit(op.reshape(frames, (batch * len(starts), size * parts)))
    product = ctx.bb.emit(op.matmul(rows, constant(matrix.astype(dtype_of(data)))))
    return op.reshape(product, (batch, len(starts), outputs, 2))


def _of_any_length(
    ctx: Context, data: relax.Expr, step: relax.Expr, window: relax.Expr | None, length: relax.Expr | None
) -> relax.Expr | None:
    """The transforms of a signal of any length as a convolution; None if the window is computed or frames are long."""
    weights = None if window is None else ctx.array(window)
    if (window is not None and weights is None) or (window is None and length is None):
        return None
    size = int(ctx.known(length).flat[0]) if length is not None else len(weights if weights is not None else ())
    stride, half = int(ctx.known(step).flat[0]), bool(ctx.attrs.get("onesided", 1))
    batch, samples, *rest = dims_of(data)
    parts = rest[0] if rest else 1
    if not 0 < size <= MOST or stride < 1 or parts not in (1, 2) or (half and parts == 2):
        return None
    if weights is not None and len(weights) != size:
        return None
    if half and parts == 1 and can_fold(ctx, data, size):
        signal = ctx.bb.emit(op.reshape(data, (batch, samples)))
        count = ctx.result()[1]
        return folded_transforms(
            ctx, signal, (batch, count), size, stride, np.ones(size) if weights is None else weights
        )
    outputs = size // 2 + 1 if half else size
    table = _matrix(size, size, outputs, False).reshape(size, 2, -1)[:, : int(parts)]
    if weights is not None:
        table = table * weights.astype(np.float64)[:, None, None]
    kernel = constant(np.ascontiguousarray(table.transpose(2, 1, 0)).astype(dtype_of(data)))
    signal = op.permute_dims(data, [0, 2, 1]) if parts == 2 else op.reshape(data, (batch, 1, samples))
    found = ctx.bb.emit(op.nn.conv1d(ctx.bb.emit(signal), kernel, strides=stride))
    found = ctx.bb.emit(op.permute_dims(found, [0, 2, 1]))
    return op.reshape(found, relax.ShapeExpr([as_int64(d) for d in ctx.result()]))


def _matrix(size: int, taken: int, outputs: int, inverse: bool) -> np.ndarray:
    """The matrix [taken · 2, outputs · 2] from pairs of real and imaginary parts to pairs."""
    # The remainder keeps angles small, and thereby exact.
    turns = np.outer(np.arange(taken), np.arange(outputs)) % size / size
    angle = 2 * np.pi * turns * (1 if inverse else -1)
    cos, sin = np.cos(angle), np.sin(angle)
    table = np.empty((taken, 2, outputs, 2))
    table[:, 0, :, 0], table[:, 0, :, 1] = cos, sin
    table[:, 1, :, 0], table[:, 1, :, 1] = -sin, cos
    return table.reshape(taken * 2, outputs * 2) / (size if inverse else 1)


def _real_matrix(size: int, taken: int) -> np.ndarray:
    """The matrix [taken · 2, size] from pairs of the one-sided spectrum to real numbers."""
    turns = np.outer(np.arange(taken), np.arange(size)) % size / size
    # A frequency stands for itself and its negative, except those that are their own negatives.
    counts = np.array([1.0 if 2 * k % size == 0 else 2.0 for k in range(taken)])[:, None]
    table = np.stack([np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)], axis=1) * counts[:, None]
    matrix: np.ndarray = table.reshape(taken * 2, size) / size
    return matrix
