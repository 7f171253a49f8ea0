"""Operators that combine elements of tensors, which are broadcast with each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np
import onnx

from heterocc.compiler.operators.record import EVERY, RANGE, Dims, Interval, Known, Operator
from heterocc.compiler.symbolic import fractions
from heterocc.compiler.symbolic.comparisons import broadcast_size
from heterocc.compiler.symbolic.contents import array_of, by_element, comparison, each, fold
from heterocc.compiler.symbolic.given import Contents, Given, Shape
from heterocc.compiler.symbolic.integers import above, divided, equal
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, larger, number, smaller


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


def _where_contents(given: Given) -> Contents | None:
    if any(c is None for c in given.contents):
        return None
    condition, yes, no = (c for c in given.contents if c is not None)

    def chosen(flag: Size | None, one: Size | None, other: Size | None) -> Size | None:
        if one is not None and one == other:
            return one
        return None if flag is None or flag.number is None else one if flag.number else other

    return array_of(np.frompyfunc(chosen, 3, 1)(condition, yes, no))


def division_contents(given: Given) -> Contents | None:
    """The quotients of integers. Those of a size that windows need to be large are not negative, as exporters assume
    of a length behind convolutions, such as (n // 5 - 5) // 4 + 1."""
    left, right = given.contents
    if left is None or right is None:
        return None

    def apart(one: Size, other: Size) -> Size | None:
        found = divided(one, other)
        return quotient(one, other) if found is None and given.assume_positive(one) else found

    return each(apart, left, right)


def least_contents(given: Given) -> Contents | None:
    """Min, of which a number is not one if a limit of the shapes is that the other size is not larger."""

    def rule(one: Size, other: Size) -> Size:
        for size, most in ((one, other.number), (other, one.number)):
            limit = given.limits.get(size.text)
            if most is not None and limit is not None and limit.most <= most:
                return size
        return smaller(one, other)

    return fold(rule)(given)


def modulo_contents(given: Given) -> Contents | None:
    """Mod has the sign of the divisor, as quotients that are rounded down do; with `fmod` that of the dividend."""
    by = divided if given.attribute("fmod", 0) else quotient

    def rest(left: Size, right: Size) -> Size | None:
        whole = by(left, right)
        if whole is None and left.number is not None and right.number is None:  # a shift by less than the size, say
            if left.number >= 0 and given.assume_positive(right - left - number(1)):
                return left
            if left.number < 0 and by is quotient and given.assume_positive(right + left):
                return right + left
        return None if whole is None else left - whole * right

    return by_element(rest)(given)


DENOMINATOR = (0.25, 2.0)
POSITIVE = (0.05, 3.0)


def _combining(name: str, **facts: Any) -> Operator:
    return Operator(name, needs=broadcast, broadcasts=EVERY, **facts)


def _sum(left: Size, right: Size) -> Size:
    return left + right


def _powered(node: onnx.NodeProto, known: Known) -> Interval | None:
    """Pow: numbers whose fractional power is a number."""
    power = known.scalar(node.input[1])
    return POSITIVE if power is not None and power != int(power) else None


_FOLLOWED: dict[str, Any] = {"length": "largest", "listed": True, "magnitude": "kept"}

OPERATORS = (
    _combining("Add", symbol="+", contents=by_element(_sum), fractions=fractions.SUM, **_FOLLOWED),
    _combining("Sub", symbol="-", contents=by_element(lambda a, b: a - b), fractions=fractions.DIFFERENCE, **_FOLLOWED),
    _combining("Mul", symbol="*", contents=by_element(lambda a, b: a * b), fractions=fractions.PRODUCT, **_FOLLOWED),
    _combining(
        "Div",
        symbol="/",
        length="largest",
        contents=division_contents,
        fractions=fractions.QUOTIENT,
        integers_differ=True,
        intervals={1: DENOMINATOR},
    ),
    _combining(
        "Mod", length="largest", contents=modulo_contents, integers_differ=True, choice=0, intervals={1: DENOMINATOR}
    ),
    _combining("Pow", intervals={0: _powered}, magnitude="risen", float32_results=RANGE, reads_reals=True, flops=10),
    _combining("Where", length="largest", contents=_where_contents, moves=range(1, 3)),
    _combining("Min", alone=True, length="largest", contents=least_contents, magnitude="kept", flops=_for_each_input),
    _combining("Max", alone=True, length="largest", contents=fold(larger), magnitude="kept", flops=_for_each_input),
    _combining("Sum", alone=True, contents=fold(_sum), magnitude="kept", flops=_for_each_input),
    _combining("Mean", alone=True, magnitude="kept", flops=_for_each_input),
    _combining("Equal", symbol="==", length="largest", contents=comparison(equal), choice=0),
    _combining("Greater", symbol=">", contents=comparison(partial(above, equal=False)), choice=0),
    _combining("GreaterOrEqual", symbol=">=", contents=comparison(partial(above, equal=True)), choice=0),
    _combining("Less", symbol="<", contents=comparison(lambda a, b: above(b, a, equal=False)), choice=0),
    _combining("LessOrEqual", symbol="<=", contents=comparison(lambda a, b: above(b, a, equal=True)), choice=0),
    _combining("And", symbol="&"),
    *map(_combining, ("Or", "Xor", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    _combining("PRelu", shapes=broadcast_shapes(0, 1), misjudged=True),
)
