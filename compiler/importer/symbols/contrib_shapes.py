"""Shapes of results of ONNX Runtime's operators, for which ONNX has no inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heterocc.compiler.importer.symbols.contents import Given, Shape
from heterocc.compiler.importer.symbols.sizes import Size, broadcast, number

MICROSOFT = "com.microsoft"


def contrib_shapes_of(given: Given) -> list[Shape] | None:
    """The shapes of a node's outputs, if there is a rule for its operator and enough is known of its inputs."""
    rule = _RULES.get(given.node.op_type)
    return rule(given) if rule is not None else None


def _same(given: Given) -> list[Shape] | None:
    return None if given.shape() is None else [given.shape()]


def _skip(given: Given) -> list[Shape] | None:
    """The normalised sum; its statistics, which are not computed; the sum."""
    shape = given.shape()
    return None if shape is None else [shape, None, None, shape]


def _product(given: Given) -> list[Shape] | None:
    left, right = given.shape(), given.shape(1)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    if given.attribute("transBatchA", 0) or given.attribute("transBatchB", 0):
        return None
    rows = left[-1 if given.attribute("transA", 0) else -2]
    columns = right[-2 if given.attribute("transB", 0) else -1]
    rank = max(len(left), len(right)) - 2
    pairs = zip(_widened(left[:-2], rank), _widened(right[:-2], rank), strict=True)
    return [(*(broadcast(a, b) for a, b in pairs), rows, columns)]


def _widened(dims: tuple[Size | None, ...], rank: int) -> tuple[Size | None, ...]:
    return (number(1),) * (rank - len(dims)) + dims


def _pooled(given: Given) -> list[Shape] | None:
    shape = given.shape()
    if shape is None:
        return None
    ones = (number(1),) * (len(shape) - 2)
    return [(shape[0], *ones, shape[-1]) if given.attribute("channels_last", 0) else (*shape[:2], *ones)]


_RULES: Mapping[str, Callable[[Given], list[Shape] | None]] = {
    **dict.fromkeys("BiasGelu FastGelu QuickGelu Gelu QLinearSigmoid QLinearLeakyRelu QLinearSoftmax".split(), _same),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _same),
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip,
    "FusedMatMul": _product,
    "QLinearGlobalAveragePool": _pooled,
}
