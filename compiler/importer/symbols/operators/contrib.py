"""Shapes of results of ONNX Runtime's operators, for which ONNX has no inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

from heterocc.compiler.importer.symbols.operators.windows import window_shapes
from heterocc.compiler.symbolic.comparisons import broadcast
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.sizes import Size, number

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


def _product(given: Given, second: int = 1) -> list[Shape] | None:
    """A matrix product of input 0 and input `second`."""
    left, right = given.shape(), given.shape(second)
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


def _blocks_product(given: Given) -> list[Shape] | None:
    shape = given.shape()
    return None if shape is None else [(*shape[:-1], number(given.attribute("N")))]


def _quantised_pool(given: Given) -> list[Shape] | None:
    return None if given.attribute("channels_last", 0) else window_shapes(given)


def _elementwise(*inputs: int) -> Callable[[Given], list[Shape] | None]:
    """A rule for an operator that broadcasts these inputs with each other."""

    def rule(given: Given) -> list[Shape] | None:
        shapes = [given.shape(index) for index in inputs]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return None
        rank = max(map(len, known))
        dims = [_widened(shape, rank) for shape in known]
        return [tuple(reduce(broadcast, sizes) for sizes in zip(*dims, strict=True))]

    return rule


def _quantised_concat(given: Given) -> list[Shape] | None:
    """The inputs are the result's scale and zero point, then a tensor, its scale and its zero point in turns."""
    found = concatenated(given.shapes[2::3], given.attribute("axis"))
    return None if found is None else [found]


def concatenated(given: Sequence[Shape], axis: int) -> Shape:
    """The shape of tensors that are joined along an axis; None if the rank of one is not known."""
    shapes = [s for s in given if s is not None]
    if len(shapes) < len(given):
        return None
    axis %= len(shapes[0])
    dims: list[Size | None] = []
    for place, sizes in enumerate(zip(*shapes, strict=True)):
        known = [s for s in sizes if s is not None]
        if place == axis:
            dims.append(sum(known, number(0)) if len(known) == len(sizes) else None)
        else:
            fixed = [s for s in known if s.number is not None]
            dims.append(next(iter(fixed or known), None))
    return tuple(dims)


def _embedded(given: Given) -> list[Shape] | None:
    """The normalised embeddings, the numbers of tokens, and the sum of the embeddings."""
    tokens, words = given.shape(), given.shape(2)
    if tokens is None or words is None:
        return None
    return [(*tokens, words[1]), (tokens[0],), (*tokens, words[1])]


def _quantised_lstm(given: Given) -> list[Shape] | None:
    """The hidden state of each step; the last hidden state, and the last cell state."""
    shape = given.shape()
    if shape is None or len(shape) != 3:
        return None
    directions = number(2 if given.attribute("direction", b"forward") == b"bidirectional" else 1)
    last = directions, shape[1], number(given.attribute("hidden_size"))
    return [(shape[0], *last), last, last]


_RULES: Mapping[str, Callable[[Given], list[Shape] | None]] = {
    **dict.fromkeys("BiasGelu FastGelu QuickGelu Gelu QLinearSigmoid QLinearLeakyRelu QLinearSoftmax".split(), _same),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _same),
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip,
    "FusedMatMul": _product,
    **dict.fromkeys("FusedGemm DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat".split(), _product),
    "QGemm": partial(_product, second=3),
    "MatMulNBits": _blocks_product,
    "FusedConv": window_shapes,
    "QLinearAveragePool": _quantised_pool,
    "QLinearAdd": _elementwise(0, 3),
    "QLinearMul": _elementwise(0, 3),
    "QLinearWhere": _elementwise(0, 1, 4),
    "QLinearConcat": _quantised_concat,
    "EmbedLayerNormalization": _embedded,
    "DynamicQuantizeLSTM": _quantised_lstm,
    "QLinearGlobalAveragePool": _pooled,
}
