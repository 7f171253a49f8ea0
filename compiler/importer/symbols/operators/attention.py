"""Shapes of the results of attention, in ONNX Runtime's domain and in ONNX's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, larger, number


def attention_shapes_of(given: Given) -> list[Shape] | None:
    """The shapes of the outputs of a node in ONNX Runtime's domain, if it is one of attention."""
    rule = _RULES.get(given.node.op_type)
    return rule(given) if rule is not None and given.shape() is not None else None


def _same(given: Given) -> list[Shape]:
    return [given.shape()]


def standard_attention(given: Given) -> list[Shape] | None:
    """Attention of ONNX's own domain: the result, keys and values with those of the past, and the scores."""
    query, *new = (given.shape(index) for index in range(3))
    if query is None or any(shape is None for shape in new):
        return None
    joined = len(query) == 3
    heads = int(given.attribute("q_num_heads", 0))
    count = given.attribute("kv_num_heads", 0)
    caches = [_cache(given, shape, count, given.shape(4 + index)) for index, shape in enumerate(new) if shape]
    size, keys = caches[1][3], caches[0][2]
    if joined:
        result = (*query[:2], None if size is None else size * number(heads))
        return [result, *caches, (query[0], number(heads), query[1], keys)]
    return [(*query[:3], size), *caches, (*query[:3], keys)]


def _cache(given: Given, new: Sequence[Size | None], heads: int, past: Shape) -> tuple[Size | None, ...]:
    """The shape of keys or values [batch, heads, sequence, size], the past ones first."""
    apart = len(new) == 4
    width, steps = (new[3], new[2]) if apart else (new[2], new[1])
    if not apart:
        width = None if width is None else quotient(width, number(heads))
    old = number(0) if past is None else past[2]
    if past is None and given.has(4 if given.node.domain == "" else 6):
        old = None
    return new[0], new[1] if apart else number(heads), None if None in (old, steps) else old + steps, width  # type: ignore[operator]


def _group_query(given: Given) -> list[Shape] | None:
    query, heads, key_heads = given.shape(), given.attribute("num_heads"), given.attribute("kv_num_heads")
    if query is None or len(query) != 3 or query[2] is None or query[2].number is None:
        return None
    packed = not given.has(1)
    size = query[2].number // (heads + 2 * key_heads if packed else heads)
    total, past = given.sizes(6), given.shape(3)
    old = number(0) if not given.has(3) else past[2] if past is not None else None
    keys: Size | None = None
    if total is not None and len(total) == 1 and old is not None:
        keys = larger(total[0], old)
    tables = given.shape(7)
    if given.attribute("do_rotary", 0) and total is not None and tables is not None and tables[0] is not None:
        angles = tables[0].number
        if angles is not None and total[0].names:
            given.limit(total[0], angles)
    cache = (query[0], number(key_heads), keys, number(size))
    return [(*query[:2], number(heads * size)), cache, cache]


def _multi_head(given: Given) -> list[Shape] | None:
    query, key, value, past = given.shape(), given.shape(1), given.shape(2), given.shape(6)
    heads = given.attribute("num_heads")
    if query is None or key is None or value is None or len(query) != 3:
        return None
    caches = [_cache(given, new, heads, past) for new in (key, value)]
    size = caches[1][3]
    return [(*query[:2], None if size is None else size * number(heads)), *caches]


def _joined(given: Given) -> list[Shape] | None:
    """Attention with one weight for queries, keys and values: the result, and the keys and values with past ones."""
    data, weights, past = given.shape(), given.shape(1), given.shape(4)
    if data is None or len(data) != 3 or weights is None or weights[1] is None:
        return None
    heads, widths = given.attribute("num_heads"), given.attribute("qkv_hidden_sizes")
    third = quotient(weights[1], number(3))
    query, width = (number(widths[0]), number(widths[2])) if widths else (third, third)
    old = number(0) if past is None else past[3]
    steps = None if old is None or data[1] is None or (past is None and given.has(4)) else old + data[1]
    size = None if query is None else quotient(query, number(heads))
    return [(*data[:2], width), (number(2), data[0], number(heads), steps, size)]


_RULES: Mapping[str, Callable[[Given], list[Shape] | None]] = {
    "Attention": _joined,
    "GroupQueryAttention": _group_query,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _same,
}
