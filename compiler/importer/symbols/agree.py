"""Dimensions of a node's inputs that must be equal, which a model with named dimensions may leave open."""

from __future__ import annotations

from collections.abc import Iterator

from heterocc.compiler.importer.symbols.contents import Given
from heterocc.compiler.importer.symbols.sizes import Size, number, product_of

Pair = tuple[Size | None, Size | None]


def disagreements(given: Given, result: tuple[Size | None, ...] | None) -> Iterator[tuple[str, str]]:
    """Pairs of sizes that must be equal and are not for all sizes of the named dimensions.

    `result` is the shape of the node's first output.
    """
    for left, right in _pairs(given, result):
        if left is not None and right is not None and left != right:
            yield left.text, right.text


def _pairs(given: Given, result: tuple[Size | None, ...] | None) -> Iterator[Pair]:
    node, first, second = given.node, given.shape(0), given.shape(1)
    if node.domain or first is None:
        return
    if node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze") and result is not None:
        if None not in first and None not in result:
            yield product_of(d for d in first if d is not None), product_of(d for d in result if d is not None)
    elif node.op_type == "Concat":
        axis = given.attribute("axis") % len(first)
        for shape in given.shapes[1:]:
            if shape is not None and len(shape) == len(first):
                yield from ((a, b) for place, (a, b) in enumerate(zip(first, shape, strict=True)) if place != axis)
    elif second is None:
        return
    elif node.op_type == "MatMul":
        yield first[-1], second[-2 if len(second) > 1 else 0]
    elif node.op_type == "Gemm":
        yield first[0 if given.attribute("transA", 0) else 1], second[1 if given.attribute("transB", 0) else 0]
    elif node.op_type in ("Conv", "ConvTranspose"):
        channels = second[0] if node.op_type == "ConvTranspose" else second[1]
        count = given.attribute("group", 1) if node.op_type == "Conv" else 1
        yield first[1], None if channels is None else channels * number(count)
    elif node.op_type == "LayerNormalization":
        yield from zip(reversed(first), reversed(second), strict=False)
    elif node.op_type in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        yield first[1], second[0]
