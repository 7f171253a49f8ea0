"""Requests in which a dimension is 0 and every result is empty, for which nothing is computed.

Code takes sizes of 1 or more of most dimensions, and no kernel has anything to do for such a request.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heterocc.artifacts.errors import FeedError
from heterocc.artifacts.manifest import Range, Variant
from heterocc.runtime.conditions import Conditions
from heterocc.runtime.feeds import Array, Feed, FeedCheck, TensorInfo
from heterocc.runtime.plan.schedule import numpy_dtype
from heterocc.runtime.shapes import fits
from heterocc.runtime.sizes import Sizes

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {"min": min, "max": max}


class EmptyResults:
    """The results of requests that the variants of one choice of devices refuse only because a dimension is 0."""

    def __init__(
        self, variants: Sequence[Variant], inputs: Sequence[TensorInfo], where: str, defaults: Mapping[str, Any]
    ) -> None:
        """`inputs` are those of the model; `defaults` are the values of inputs that a feed may leave out."""
        self._check = FeedCheck([_open(info) for info in inputs], where, defaults)
        self._variants = [
            (variant.model_copy(update={"bounds": {n: _or_empty(r) for n, r in variant.bounds.items()}}), conditions)
            for variant in variants
            for conditions in [Conditions(variant, [info.name for info in inputs], where)]
        ]

    def of(self, feed: Feed) -> list[Array] | None:
        """The model's outputs; None if one of them is not empty or not known to be, or the feed is wrong."""
        try:
            arrays = self._check(feed)
        except FeedError:
            return None
        if not any(isinstance(array, np.ndarray) and array.size == 0 for array in arrays):
            return None
        shapes = [getattr(array, "shape", None) for array in arrays]
        for variant, conditions in self._variants:
            if fits(variant, shapes) and conditions.are_met(arrays):
                return _results(variant, shapes)
        return None


def _open(info: TensorInfo) -> TensorInfo:
    """An input whose dimensions may be 0 where code only needs elements."""
    sizes = tuple(s and Sizes(s.values, s.range and _or_empty(s.range)) for s in info.sizes)
    return TensorInfo(info.name, info.dtype, info.shape, sizes, info.elements)


def _or_empty(allowed: Range) -> Range:
    """The sizes of a dimension, with 0 if their only limit is that code needs elements, or a multiple of a number."""
    return Range(step=allowed.step) if allowed == Range(min=allowed.step, step=allowed.step) else allowed


def _results(variant: Variant, shapes: Sequence[Sequence[int] | None]) -> list[Array] | None:
    sizes: dict[str, int] = {}
    for value, shape in zip(variant.inputs, shapes, strict=True):
        dims = zip(variant.values[value].shape or (), shape or (), strict=False)
        sizes.update((dim, size) for dim, size in dims if isinstance(dim, str))
    found: list[Array] = []
    for value in variant.outputs:
        spec = variant.values[value]
        dtype = numpy_dtype(spec.dtype)
        if dtype is None or spec.shape is None:
            return None
        known = [size for size in (_size(dim, sizes) for dim in spec.shape) if size is not None]
        if len(known) < len(spec.shape) or 0 not in known or min(known) < 0:
            return None
        try:
            found.append(np.empty(known, dtype))
        except (ValueError, MemoryError):  # sizes beside the 0 that no array may have
            return None
    return found


def _size(dim: int | str | None, sizes: Mapping[str, int]) -> int | None:
    """A dimension, which a bundle has as a number, a name, or an expression of names in Python's notation."""
    if dim is None or isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    try:
        return _value(ast.parse(dim, mode="eval").body, sizes)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int | None:
    """The value of an expression; None if it has anything else than names and whole numbers."""
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return sizes.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value(operand, sizes)
            return None if value is None else -value
        case ast.BinOp(left=first, op=kind, right=second):
            rule = _OPERATIONS.get(type(kind))
        case ast.Call(func=ast.Name(id=name), args=[first, second]):
            rule = _FUNCTIONS.get(name)
        case _:
            return None
    left, right = _value(first, sizes), _value(second, sizes)
    return None if rule is None or left is None or right is None else rule(left, right)
