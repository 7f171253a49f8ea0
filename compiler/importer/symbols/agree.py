"""Dimensions of a node's inputs that must be equal, which a model with named dimensions may leave open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from heterocc.compiler.importer.symbols.given import Given, Shape
from heterocc.compiler.importer.symbols.quotients import quotient
from heterocc.compiler.importer.symbols.sizes import Size, number, product_of

Pair = tuple[Size | None, Size | None]


def needed_equal(given: Given, result: tuple[Size | None, ...] | None) -> Iterator[tuple[Size, Size]]:
    """Pairs of sizes that must be equal and are not for all sizes of the named dimensions.

    `result` is the shape of the node's first output.
    """
    for left, right in _pairs(given, result):
        if left is not None and right is not None and left != right:
            yield left, right


def broadcast_pairs(given: Given) -> Iterator[tuple[Size, Size]]:
    """Pairs of sizes that are broadcast with each other, of which none is 1 for all sizes of the named dimensions."""
    if given.node.domain or given.node.op_type not in _BROADCASTING:
        return
    known = [shape for shape in given.shapes if shape is not None]
    for place in range(1, 1 + max((len(shape) for shape in known), default=0)):
        sizes = [shape[-place] for shape in known if len(shape) >= place]
        wide = [size for size in sizes if size is not None and size.number != 1]
        yield from ((wide[0], other) for other in wide[1:] if other != wide[0])


def copied_axes(given: Given, unknown: Collection[str]) -> list[int]:
    """The axes of a Reshape whose computed size may be 0 where the data's is not, which it would copy then.

    Only sizes that depend on `unknown` names, those known only at run time, may be 0.
    """
    shape, wanted = given.shape(), given.contents[1] if len(given.contents) > 1 else None
    if given.node.op_type != "Reshape" or given.node.domain or given.attribute("allowzero", 0):
        return []
    if shape is None or wanted is None:
        return []

    def differs(size: Size, own: Size) -> bool:
        times = quotient(own, size)
        return times is None or times * size != own

    return [
        axis
        for axis, (size, own) in enumerate(zip(wanted.flat, shape, strict=False))
        if size is not None and own is not None and (size.least or 0) < 1
        if not size.names.isdisjoint(unknown) and differs(size, own)
    ]


def shapes_needed(
    given: Given, result: tuple[Size | None, ...] | None, unknown: Collection[str]
) -> dict[int, tuple[Size, ...]]:
    """The shapes that inputs must have, by place, where sizes of `unknown` names are what another one says.

    `result` is the shape of the node's first output. Only a run knows whether the inputs have these shapes.
    """
    node, first = given.node, given.shape(0)
    if node.domain or first is None or None in first:
        return {}
    own = [size for size in first if size is not None]
    if node.op_type == "Reshape" and result is not None and None not in result:
        total = product_of(size for size in result if size is not None)
        for axis, size in enumerate(own):
            rest = product_of(own[:axis] + own[axis + 1 :])
            wanted = quotient(total, rest)
            if not size.names.isdisjoint(unknown) and wanted is not None and wanted * rest == total:
                return {} if wanted == size else {0: (*own[:axis], wanted, *own[axis + 1 :])}
    if node.op_type == "Split":
        axis = given.attribute("axis", 0) % len(own)
        wanted = next((right for left, right in needed_equal(given, result) if left == own[axis]), own[axis])
        known = own[axis].names.isdisjoint(unknown) or wanted == own[axis]
        return {} if known else {0: (*own[:axis], wanted, *own[axis + 1 :])}
    if node.op_type == "ScatterND":
        pairs = _updates(given)
        return {2: tuple(own if own.names.isdisjoint(unknown) else new for own, new in pairs)} if pairs else {}
    second = given.shape(1)
    if node.op_type == "MatMul" and second is not None and None not in second:
        places = [(0, len(first) - 1), (1, max(len(second) - 2, 0))]
        return _alike([first, second], [places], unknown)
    if node.op_type == "Concat" and all(s is not None and len(s) == len(first) and None not in s for s in given.shapes):
        axes = [axis for axis in range(len(first)) if axis != given.attribute("axis") % len(first)]
        alike = [[(place, axis) for place in range(len(given.shapes))] for axis in axes]
        return _alike(given.shapes, alike, unknown)
    return {}


def _updates(given: Given) -> list[tuple[Size, Size]]:
    """The sizes of the updates of a ScatterND, each with what it must be: a slice of the data for each index tuple."""
    data, indices, updates = (given.shape(place) or (None,) for place in range(3))
    depth = None if indices[-1] is None else indices[-1].number
    if depth is None or None in data or None in indices or None in updates:
        return []
    own, wanted = [d for d in updates if d is not None], [d for d in (*indices[:-1], *data[depth:]) if d is not None]
    return list(zip(own, wanted, strict=True)) if len(own) == len(wanted) else []


def _alike(
    shapes: Sequence[Shape], alike: Iterable[Sequence[tuple[int, int]]], unknown: Collection[str]
) -> dict[int, tuple[Size, ...]]:
    """The shapes, by place, in which sizes of unknown names become those of others; empty if known ones differ.

    Each element of `alike` has the sizes that must be equal, as places of shapes and axes.
    """
    wanted = [[size for size in shape or () if size is not None] for shape in shapes]
    for places in alike:
        known = {wanted[place][axis] for place, axis in places if wanted[place][axis].names.isdisjoint(unknown)}
        if len(known) > 1:
            return {}
        first = wanted[places[0][0]][places[0][1]]
        for place, axis in places:
            wanted[place][axis] = next(iter(known), first)
    return {n: tuple(new) for n, (new, old) in enumerate(zip(wanted, shapes, strict=True)) if tuple(new) != old}


_BROADCASTING = frozenset(
    "Add Sub Mul Div Mod Pow Where And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual Min Max Sum Mean PRelu "
    "BitShift BitwiseAnd BitwiseOr BitwiseXor".split()
)


_LEAST_RANKS = {
    "Concat": (1, 0),
    "Split": (1, 0),
    "MatMul": (1, 1),
    "Gemm": (2, 2),
    "Conv": (2, 2),
    "ConvTranspose": (2, 1),
    "BatchNormalization": (2, 1),
    "InstanceNormalization": (2, 1),
    "GroupNormalization": (2, 1),
    "LSTM": (3, 3),
}
"""The least numbers of dimensions of the first two inputs; other checks refuse a model with fewer."""

_LIKE = {
    "ConvInteger": "Conv",
    "QLinearConv": "Conv",
    "MatMulInteger": "MatMul",
    "QLinearMatMul": "MatMul",
    "GRU": "LSTM",
    "RNN": "LSTM",
}
"""Operators with the conditions of another one; those that begin with QLinear have the second operand as input 3."""


def _pairs(given: Given, result: tuple[Size | None, ...] | None) -> Iterator[Pair]:
    node, first = given.node, given.shape(0)
    op_type = _LIKE.get(node.op_type, node.op_type)
    second = given.shape(3 if node.op_type.startswith("QLinear") else 1)
    if node.domain or first is None:
        return
    least = _LEAST_RANKS.get(op_type, (0, 0))
    if len(first) < least[0] or (second is not None and len(second) < least[1]):
        return
    if node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze") and result is not None:
        if None not in first and None not in result:
            yield product_of(d for d in first if d is not None), product_of(d for d in result if d is not None)
    elif node.op_type == "Split":
        parts = given.numbers(1, "split" if given.opset < 13 else None)
        if parts is not None:
            yield first[given.attribute("axis", 0) % len(first)], number(sum(parts))
    elif node.op_type == "ScatterND":  # other sizes are compared in each run
        yield from (pair for pair in _updates(given) if any(size.number is not None for size in pair))
    elif node.op_type == "Concat":
        axis = given.attribute("axis") % len(first)
        for shape in given.shapes[1:]:
            if shape is not None and len(shape) == len(first):
                yield from ((a, b) for place, (a, b) in enumerate(zip(first, shape, strict=True)) if place != axis)
    elif second is None:
        return
    elif op_type == "MatMul":
        yield first[-1], second[-2 if len(second) > 1 else 0]
    elif node.op_type == "Gemm":
        yield first[0 if given.attribute("transA", 0) else 1], second[1 if given.attribute("transB", 0) else 0]
    elif op_type in ("Conv", "ConvTranspose"):
        channels = second[0] if op_type == "ConvTranspose" else second[1]
        count = given.attribute("group", 1) if op_type == "Conv" else 1
        yield first[1], None if channels is None else channels * number(count)
    elif op_type == "LSTM":
        yield first[2], second[2]
    elif node.op_type == "LayerNormalization":
        yield from zip(reversed(first), reversed(second), strict=False)
    elif node.op_type in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        yield first[1], second[0]
