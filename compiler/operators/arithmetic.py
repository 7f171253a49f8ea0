"""Operators that combine elements of tensors, which are broadcast with each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import zip_longest
from math import prod
from typing import Any

import onnx

from heterocc.compiler.operators.record import EVERY, RANGE, Dims, Operator
from heterocc.compiler.symbolic.comparisons import broadcast_size
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number


def broadcast(needs: Needs) -> None:
    """The sizes of each dimension are equal, or 1."""
    inputs = [(place, needs.shape(place)) for place in range(len(needs.given.shapes))]
    stacked(needs, [(place, shape, 0) for place, shape in inputs])


def stacked(needs: Needs, inputs: Sequence[tuple[int, Sequence[Size | None], int]]) -> None:
    """Inputs, each with its shape, are broadcast with each other but for a number of last dimensions of each."""
    columns = [
        [(place, axis - last, shape[axis - last]) for axis in range(-1, last - len(shape) - 1, -1)]
        for place, shape, last in inputs
    ]
    for column in zip_longest(*columns):
        wide = [found for found in column if found is not None and found[2] is not None and found[2].number != 1]
        for place, axis, size in wide[1:]:
            if size != wide[0][2]:
                needs.broadcast(place, axis, wide[0][2])


def slope(needs: Needs) -> None:
    """PRelu: the slope is broadcast to the data."""
    data, own = needs.shape(0), needs.shape(1)
    for axis in range(1, 1 + min(len(data), len(own))):
        needs.broadcast(1, -axis, data[-axis])


def widened(dims: tuple[Size | None, ...], rank: int) -> tuple[Size | None, ...]:
    """Dimensions with as many of size 1 before them as are missing from a rank."""
    return (number(1),) * (rank - len(dims)) + dims


def broadcast_shapes(*inputs: int) -> Callable[[Given], list[Shape] | None]:
    """A rule for an operator that broadcasts these inputs with each other."""

    def rule(given: Given) -> list[Shape] | None:
        shapes = [given.shape(index) for index in inputs]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return None
        rank = max(map(len, known))
        dims = [widened(shape, rank) for shape in known]
        return [tuple(reduce(broadcast_size, sizes) for sizes in zip(*dims, strict=True))]

    return rule


def _for_each_input(_node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    return float(prod(output) * max(1, len(inputs) - 1))


DENOMINATOR = (0.25, 2.0)


def _combining(name: str, **facts: Any) -> Operator:
    return Operator(name, needs=broadcast, broadcasts=EVERY, **facts)


OPERATORS = (
    _combining("Add", magnitude="kept"),
    _combining("Sub", magnitude="kept"),
    _combining("Mul", magnitude="kept"),
    _combining("Div", intervals={1: DENOMINATOR}),
    _combining("Mod", choice=0, intervals={1: DENOMINATOR}),
    _combining("Pow", magnitude="risen", float32_results=RANGE, flops=10),
    _combining("Where", moves=range(1, 3)),
    *(_combining(name, magnitude="kept", flops=_for_each_input) for name in ("Min", "Max", "Sum", "Mean")),
    *(_combining(name, choice=0) for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    *map(_combining, ("And", "Or", "Xor", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    Operator("PRelu", needs=slope),
)
