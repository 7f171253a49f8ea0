"""Properties of Relax expressions with static shapes, and small expressions that converters build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tvm
from tvm import relax, tirx

from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64
from heterocc.compiler.operators.table import operators

_Item = TypeVar("_Item")

MOST_ENDS = 32
"""The most tensors that one kernel of a node with any number of inputs or outputs reads or writes.

TVM's code generation visits the parameters of a kernel recursively, and takes time that grows with their square.
"""

GROUPED = frozenset(["Split", *(operator.name for operator in operators() if operator.alone)])
"""Operators of any number of inputs or outputs that converters compute in groups."""


def groups(items: Sequence[_Item]) -> list[Sequence[_Item]]:
    """The items in groups of at most MOST_ENDS, in order."""
    return [items[start : start + MOST_ENDS] for start in range(0, len(items), MOST_ENDS)]


def combined(function: Callable[[relax.Expr, relax.Expr], relax.Expr], inputs: Sequence[relax.Expr]) -> relax.Expr:
    """The inputs combined from the first to the last; many are combined in groups, and then the groups."""
    if len(inputs) > MOST_ENDS:
        return combined(function, [combined(function, group) for group in groups(inputs)])
    total = inputs[0]
    for item in inputs[1:]:
        total = function(total, item)
    return total


def shape_of(value: relax.Expr, first: int = 0) -> tuple[int, ...]:
    """The shape of a tensor, from dimension `first` on. Raises NotImplementedError if one of them has no fixed size."""
    return tuple(fixed_size(value, axis) for axis in range(rank_of(value))[first:])


def fixed_size(value: relax.Expr, axis: int) -> int:
    """The size of one dimension. Raises NotImplementedError if it is not fixed."""
    size = dims_of(value)[axis]
    if not isinstance(size, int):
        raise NotImplementedError(f"dimension {axis} of an input has no fixed size")
    return size


def dims_of(value: relax.Expr) -> tuple[Any, ...]:
    """The shape of a tensor: numbers, and expressions of variables for dimensions without a fixed size."""
    return tuple(int(d) if isinstance(d, tirx.IntImm) else d for d in value.ty.shape.values)


def rank_of(value: relax.Expr) -> int:
    """The number of dimensions of a tensor."""
    return len(value.ty.shape.values)


def is_known_empty(value: relax.Expr) -> bool:
    """Whether a dimension of fixed size is 0."""
    return any(isinstance(d, int) and d == 0 for d in dims_of(value))


def dtype_of(value: relax.Expr) -> str:
    """The element type of a tensor, by numpy's name."""
    return str(value.ty.dtype.dtype)


def is_float(value: relax.Expr) -> bool:
    """Whether a tensor's elements are floating-point numbers."""
    return dtype_of(value).startswith(("float", "bfloat"))


def scalar(value: float, dtype: str) -> relax.Expr:
    """A constant tensor of rank 0."""
    return constant(np.array(value, dtype=dtype))


def filled(shape: Sequence[Extent], value: np.ndarray[Any, Any]) -> relax.Expr:
    """A tensor whose elements are all the value of a scalar.

    Infinities and NaN are broadcast: TVM's `full` fails for them.
    """
    sizes = [as_int64(n) for n in shape]
    if value.dtype.kind == "f" and not np.isfinite(value):
        return relax.op.broadcast_to(constant(value.reshape(())), sizes)
    return relax.op.full(sizes, constant(value.reshape(())), value.dtype.name)


def as_dtype(value: relax.Expr, dtype: str) -> relax.Expr:
    """The value cast to a dtype, or the value itself if it already has it."""
    return value if dtype_of(value) == dtype else relax.op.astype(value, dtype)


def fixed(value: relax.Expr) -> np.ndarray | None:
    """The array of a constant; None for parameters and computed values."""
    return np.asarray(value.value.numpy()) if isinstance(value, tvm.ir.GenericConst) else None


def inside(index: tirx.Expr, size: Extent) -> tirx.Expr:
    """An index as int64, counted from the end if negative, and clamped to a dimension of `size` elements.

    ONNX does not define the result for indices out of range, but compiled code must stay inside the tensor.
    """
    index = index.astype("int64")
    zero, count = tirx.const(0, "int64"), as_int64(size)
    index = tirx.Select(index < zero, index + count, index)
    return tirx.max(zero, tirx.min(index, as_int64(size - 1)))


def clipped(value: relax.Expr, low: int, high: int, dtype: str) -> relax.Expr:
    """The value limited to `low` and `high`; its dtype is `dtype`."""
    return relax.op.minimum(relax.op.maximum(value, scalar(low, dtype)), scalar(high, dtype))


def cropped_place(
    place: tirx.Expr, size: tirx.Expr, before: tirx.Expr, after: tirx.Expr, mode: str
) -> tuple[tirx.Expr, tirx.Expr]:
    """The place in data of `size` that a tensor has at `place` if it is padded by these numbers.

    The second result says whether it is inside of the data. Negative numbers crop the data first, as in ONNX
    Runtime: what is left is wrapped, for example.
    """
    zero = as_int64(0)
    cut = tirx.max(zero - before, zero)
    left = size - cut - tirx.max(zero - after, zero)
    place = place - tirx.max(before, zero)
    return padded_place(place, left, mode) + cut, tirx.all(place >= zero, place < left)


def padded_place(place: tirx.Expr, size: tirx.Expr, mode: str) -> tirx.Expr:
    """The place in data of `size` that a padded tensor has at `place`, which may be outside of the data.

    `mode` is that of ONNX's Pad; the values outside of data that is padded with a constant are not used.
    """
    zero, one = as_int64(0), as_int64(1)
    if mode == "wrap":
        around = tirx.floormod(place, tirx.max(size, one))
        # Loops are divided where a condition changes, so that what is inside is copied in vectors.
        place = tirx.if_then_else(tirx.all(place >= zero, place < size), place, around)
    elif mode == "reflect":
        period = tirx.max(as_int64(2) * (size - one), one)
        place = tirx.floormod(place, period)
        place = tirx.Select(place >= size, period - place, place)
    return tirx.max(zero, tirx.min(place, size - one))
