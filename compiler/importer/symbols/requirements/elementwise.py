"""Requirements of operators that combine elements, and of products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number

BROADCASTING = frozenset(
    "Add Sub Mul Div Mod Pow Where And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual Min Max Sum Mean "
    "BitShift BitwiseAnd BitwiseOr BitwiseXor".split()
)
"""Operators whose inputs are all broadcast with each other."""


CHOOSING = frozenset(["Expand"])
"""Operators whose code looks at the run which sizes are 1, if those of the result are known."""


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


def product(needs: Needs, left: int = 0, right: int = 1) -> None:
    """MatMul: the rows of one are as long as the columns of the other, and stacks are broadcast."""
    first, second = needs.shape(left), needs.shape(right)
    if not first or not second:
        return
    needs.equal(right, -2 if len(second) > 1 else 0, first[-1])
    if len(first) > 2 and len(second) > 2:
        stacked(needs, [(left, first, 2), (right, second, 2)])


def gemm(needs: Needs, second: int = 1, bias: int = 2) -> None:
    """Gemm: the rows of one are as long as the columns of the other, and the bias is broadcast to the result."""
    turned = [bool(needs.given.attribute(name, 0)) for name in ("transA", "transB")]
    if len(needs.shape(0)) != 2 or len(needs.shape(second)) != 2:
        return
    needs.equal(second, 1 if turned[1] else 0, needs.size(0, 0 if turned[0] else 1))
    result = needs.size(0, 1 if turned[0] else 0), needs.size(second, 0 if turned[1] else 1)
    for axis in range(1, 1 + len(needs.shape(bias))):
        needs.broadcast(bias, -axis, result[-axis] if axis <= 2 else number(1))


def fused_product(needs: Needs) -> None:
    """FusedMatMul: as MatMul of matrices that may be transposed."""
    first, second = needs.shape(0), needs.shape(1)
    if len(first) < 2 or len(second) < 2 or any(needs.given.attribute(f"transBatch{s}", 0) for s in "AB"):
        return
    turned = [bool(needs.given.attribute(name, 0)) for name in ("transA", "transB")]
    needs.equal(1, -1 if turned[1] else -2, first[-2 if turned[0] else -1])
    stacked(needs, [(0, first, 2), (1, second, 2)])


RULES = {
    **dict.fromkeys(BROADCASTING, broadcast),
    "PRelu": slope,
    "MatMul": product,
    "Gemm": gemm,
}
