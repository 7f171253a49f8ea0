"""Attention: queries, keys, values, masks and caches that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from heterocc.compiler.operators.record import MICROSOFT, Dims, Operator
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number


def _times(size: Size | None, count: int) -> Size | None:
    return None if size is None else size * number(count)


def _divided(size: Size | None, count: int) -> Size | None:
    return None if size is None or count <= 0 else quotient(size, number(count))


def _cache(needs: Needs, places: Sequence[int], shape: Sequence[Size | int | None]) -> None:
    """Past keys and values [batch, heads, sequence, size], of one length."""
    for place in places:
        needs.shaped(place, shape)
    if len(needs.shape(places[1])) == 4:
        needs.equal(places[1], 2, needs.size(places[0], 2))


def _scores(needs: Needs, place: int, dims: Sequence[Size | int | None]) -> None:
    """A tensor that is broadcast to the scores [batch, heads, queries, keys]."""
    needs.fits(place, [number(d) if isinstance(d, int) else d for d in dims])


def _keys(needs: Needs, new: Size | None, past: int) -> Size | None:
    """The number of all keys."""
    old = needs.size(past, 2) if needs.given.has(past) else number(0)
    return None if old is None or new is None else old + new


def standard(needs: Needs) -> None:
    """Attention of ONNX's own domain."""
    query, key = needs.shape(0), needs.shape(1)
    if not query or not key or len(query) != len(key):
        return
    heads, key_heads = needs.given.attribute("q_num_heads", 0), needs.given.attribute("kv_num_heads", 0)
    for place in (1, 2):
        needs.equal(place, 0, query[0])
    if len(query) == 4:
        needs.multiple(0, 1, key[1])
        needs.equal(2, 1, key[1])
        needs.equal(1, 3, query[3])
        needs.equal(2, 2, key[2])
        count, own = key[1], query[1]
        rows, new, widths = query[2], key[2], (key[3], needs.size(2, 3))
    elif heads and key_heads:
        needs.multiple(0, 2, heads)
        needs.relate(_times(key[2], heads), "equal", _times(query[2], key_heads), f"the width of {needs.name(1)}")
        needs.equal(2, 1, key[1])
        needs.multiple(2, 2, key_heads)
        count, own = number(key_heads), number(heads)
        rows, new = query[1], key[1]
        widths = _divided(key[2], key_heads), _divided(needs.size(2, 2), key_heads)
    else:
        return
    for place, width in zip((4, 5), widths, strict=True):
        needs.shaped(place, [query[0], count, None, width])
    _cache(needs, (4, 5), [query[0], count, None, None])
    total = _keys(needs, new, 4)
    _scores(needs, 3, [query[0], own, rows, None])
    if needs.shape(3) and needs.shape(3)[-1] != total:
        needs.relate(total, "at_least", needs.shape(3)[-1], "the number of keys, which the mask may not exceed,")
    needs.equal(6, 0, query[0])


def multi_head(needs: Needs) -> None:
    """MultiHeadAttention."""
    query, key, value = needs.shape(0), needs.shape(1), needs.shape(2)
    heads = needs.given.attribute("num_heads")
    if len(query) != 3 or not key or not value:
        return
    needs.multiple(0, 2, heads)
    for place in (1, 2):
        needs.equal(place, 0, query[0])
    apart = len(key) == 4
    if apart:
        needs.equal(1, 1, heads)
        needs.equal(1, 3, _divided(query[2], heads))
        needs.shaped(2, [query[0], heads, key[2], None])
        new, width = key[2], needs.size(2, 3)
    else:
        needs.equal(1, 2, query[2])
        needs.shaped(2, [query[0], key[1], None])
        needs.multiple(2, 2, heads)
        new, width = key[1], _divided(needs.size(2, -1), heads)
    parts = [query[2], needs.size(1, -1), needs.size(2, -1)]
    if None not in parts and not apart:
        needs.equal(3, 0, sum((p for p in parts if p is not None), number(0)))
    needs.shaped(6, [query[0], heads, None, _divided(query[2], heads)])
    needs.shaped(7, [query[0], heads, None, width])
    _cache(needs, (6, 7), [query[0], heads, None, None])
    _scores(needs, 5, [query[0], heads, query[1], _keys(needs, new, 6)])


def packed(needs: Needs) -> None:
    """Attention of ONNX Runtime's domain, with one weight for queries, keys and values."""
    data, weights = needs.shape(0), needs.shape(1)
    heads, widths = needs.given.attribute("num_heads"), needs.given.attribute("qkv_hidden_sizes")
    if len(data) != 3 or len(weights) != 2:
        return
    needs.equal(1, 0, data[2])
    needs.shaped(2, [weights[1]])
    if widths:
        needs.equal(1, 1, sum(int(n) for n in widths))
    else:
        needs.multiple(1, 1, 3 * heads)
    own = int(widths[0]) if widths else _divided(weights[1], 3)
    width = own // heads if isinstance(own, int) else _divided(own, heads)
    needs.shaped(4, [2, data[0], heads, None, width])
    old = needs.size(4, 3) if needs.given.has(4) else number(0)
    total = None if old is None or data[1] is None else old + data[1]
    needs.shaped(3, [data[0], total])
    needs.shaped(3, [data[0], data[1], total])
    _scores(needs, 5, [data[0], heads, data[1], total])


def group_query(needs: Needs) -> None:
    """GroupQueryAttention."""
    query = needs.shape(0, 3)
    heads, key_heads = needs.given.attribute("num_heads"), needs.given.attribute("kv_num_heads")
    if not query:
        return
    size = _divided(query[2], heads if needs.given.has(1) else heads + 2 * key_heads)
    needs.multiple(0, 2, heads if needs.given.has(1) else heads + 2 * key_heads)
    for place in (1, 2):
        needs.shaped(place, [query[0], query[1], _times(size, key_heads)])
    _cache(needs, (3, 4), [query[0], key_heads, None, size])
    needs.equal(5, 0, query[0])
    needs.single(6)
    needs.shaped(8, needs.shape(7))
    needs.shaped(9, [query[0], query[1]])
    _scores(needs, 10, [query[0], heads, query[1], None])


def rotary(needs: Needs) -> None:
    """RotaryEmbedding: places of all tokens or of the first, and two tables of one shape."""
    data = needs.shape(0)
    if not data:
        return
    batch, steps = data[0], data[2 if len(data) == 4 else 1]
    needs.shaped(1, [batch, steps])
    needs.shaped(1, [1])
    needs.shaped(3, needs.shape(2))
    heads = needs.given.attribute("num_heads", 0)
    turned, width = needs.given.attribute("rotary_embedding_dim", 0), needs.size(2, 1)
    if turned:
        needs.equal(2, 1, turned // 2)
    elif len(data) == 4:
        needs.relate(_times(width, 2), "equal", data[3], f"the width of {needs.name(2)}, twice,")
    elif heads:
        needs.relate(_times(width, 2 * heads), "equal", data[2], f"the width of {needs.name(2)} for all heads, twice,")
    if len(data) == 4 and heads:
        needs.equal(0, 1, heads)


def _flops(_node: onnx.NodeProto, inputs: Sequence[Dims], _output: Dims) -> float:
    """Two products of the queries with all keys, and the softmax between them."""
    query, key = inputs[0], inputs[1] if len(inputs) > 1 and len(inputs[1]) >= 2 else inputs[0]
    return 4.0 * prod(query) * key[-2]


_NORMS = "q_norm_epsilon k_norm_epsilon qk_norm_epsilon"
_SCORES = "mask_filter_value qk_matmul_output_mode softmax_precision"

OPERATORS = (
    Operator("Attention", needs=standard, product=True, flops=_flops, unread=_SCORES),
    Operator("Attention", MICROSOFT, needs=packed, product=True, flops=_flops, unread=_SCORES),
    Operator("MultiHeadAttention", MICROSOFT, needs=multi_head, product=True, flops=_flops, unread="mask_filter_value"),
    Operator("GroupQueryAttention", MICROSOFT, needs=group_query, product=True, unread=f"rotary_interleaved {_NORMS}"),
    Operator("RotaryEmbedding", MICROSOFT, needs=rotary),
)
