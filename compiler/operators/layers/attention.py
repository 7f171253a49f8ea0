"""Attention: queries, keys, values, masks and caches that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from heterocc.compiler.operators.record import EVERY, FIRST_FILLED, LAST, MICROSOFT, Dims, Operator, Part, same_shape
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, larger, number


def _times(size: Size | None, count: int) -> Size | None:
    return None if size is None else size * number(count)


def _product(sizes: Sequence[Size | None]) -> Size | None:
    return None if None in sizes else prod((size for size in sizes if size is not None), start=number(1))


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


def _bias(needs: Needs, place: int, dims: Sequence[Size | int | None]) -> None:
    """A tensor that ONNX Runtime broadcasts to the scores along batch and heads alone."""
    _scores(needs, place, [*dims[:2], None, None])
    needs.shaped(place, [None, None, *dims[2:]])


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
    _ends(needs, 4, query[0])
    parts = [query[2], needs.size(1, -1), needs.size(2, -1)]
    if None not in parts and not apart:
        needs.equal(3, 0, sum((p for p in parts if p is not None), number(0)))
    needs.shaped(6, [query[0], heads, None, _divided(query[2], heads)])
    needs.shaped(7, [query[0], heads, None, width])
    _cache(needs, (6, 7), [query[0], heads, None, None])
    total = _keys(needs, new, 6)
    needs.shaped(4, [query[0], total])
    needs.shaped(4, [query[0], query[1], total])
    _bias(needs, 5, [query[0], heads, query[1], total])


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
    _ends(needs, 3, data[0])
    needs.shaped(3, [data[0], total])
    needs.shaped(3, [data[0], data[1], total])
    _bias(needs, 5, [data[0], heads, data[1], total])


def _ends(needs: Needs, place: int, batch: Size | None) -> None:
    """A mask of one dimension: the ends of the items' keys, and more. Code looks at the run what it is."""
    if len(needs.shape(place)) == 1:
        needs.at_least(place, 0, batch)


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
    _cache(needs, (3, 4), [query[0], key_heads, None, _stored(needs.given, size)])
    needs.equal(5, 0, query[0])
    needs.single(6)
    needs.shaped(8, needs.shape(7))
    needs.multiple(7, 1, 8)
    needs.shaped(9, [query[0], query[1]])
    _scores(needs, 10, [query[0], heads, None, None])
    needs.equal(10, -2, query[1])
    needs.equal(11, 0, heads)
    for place, side in ((12, "k"), (13, "v")):
        if needs.given.attribute(f"{side}_quant_type") == b"PER_TENSOR":
            needs.single(place)
        elif needs.shape(place):
            each = _times(size, key_heads)
            needs.relate(_product(needs.shape(place)), "equal", each, f"the number of scales {needs.name(place)}")
    needs.relate(
        size, "at_least", _times(needs.size(7, 1), 2), f"the size of a head, half of which {needs.name(7)} turns,"
    )
    if needs.given.attribute("sliding_window_cache", 0):
        needs.at_least(3, 2, number(needs.given.attribute("local_window_size", 0)))
    else:
        _total(needs, query[0], query[1])


def _total(needs: Needs, batch: Size | None, new: Size | None) -> None:
    """The number of past and new keys is the sum of both, or the cache of past ones has room for all."""
    total = needs.given.sizes(6)
    past = needs.size(3, 2) if needs.given.has(3) else number(0)
    if total is None or len(total) != 1:
        return
    (keys,), what, one = total, needs.name(6), number(1)
    needs.relate(keys, "at_least", one, what)
    if needs.given.attribute("do_rotary", 0):
        needs.at_least(7, 0, keys)
    needs.equal(10, -1, keys)
    if past is None or new is None:
        return
    needs.relate(past + new, "at_least", keys, f"the number of past and new keys, which {what} may not exceed,")
    needs.relate(larger(keys, past) - past, "multiple", new, f"what {what} adds to the past keys")
    if batch is not None:
        several = (batch - one) * (new - one) * (keys - new)
        needs.relate(several, "equal", number(0), "the number of past keys of several items with several new ones each")


def rotary(needs: Needs) -> None:
    """RotaryEmbedding: places of all tokens or of the first, and two tables of one shape."""
    data = needs.shape(0)
    if not data:
        return
    batch, steps = data[0], data[2 if len(data) == 4 else 1]
    needs.shaped(1, [batch, steps])
    needs.shaped(1, [1])
    needs.at_least(2, 0, steps)
    needs.shaped(3, needs.shape(2))
    heads = needs.given.attribute("num_heads", 0)
    turned, width = needs.given.attribute("rotary_embedding_dim", 0), needs.size(2, 1)
    if heads and len(data) == 3:
        needs.multiple(0, 2, heads)
    if turned:
        needs.equal(2, 1, turned // 2)
        size = data[3] if len(data) == 4 else _divided(data[2], heads or 1)
        needs.relate(
            size, "at_least", number(turned), "the size of a head, of which rotary_embedding_dim turns a part,"
        )
    elif len(data) == 4:
        needs.relate(_times(width, 2), "equal", data[3], f"the width of {needs.name(2)}, twice,")
    elif heads:
        needs.relate(_times(width, 2 * heads), "equal", data[2], f"the width of {needs.name(2)} for all heads, twice,")
    if len(data) == 4 and heads:
        needs.equal(0, 1, heads)


def rotary_sections(needs: Needs) -> None:
    """MRotaryEmbedding: places of all tokens for each of three parts of a head, and two tables of one shape."""
    data = needs.shape(0)
    if len(data) not in (3, 4):
        return
    needs.shaped(1, [3, data[0], data[2 if len(data) == 4 else 1]])
    needs.shaped(3, needs.shape(2))
    heads, turned = needs.given.attribute("num_heads", 0), needs.given.attribute("rotary_embedding_dim", 0)
    needs.equal(2, 1, sum(needs.given.attribute("mrope_section")))
    if turned:
        needs.equal(2, 1, turned // 2)
    if len(data) == 3 and heads:
        needs.multiple(0, 2, heads)
    size = data[3] if len(data) == 4 else _divided(data[2], heads) if heads else None
    wide = _times(needs.size(2, 1), 2)
    needs.relate(size, "at_least" if turned else "equal", wide, f"the width of {needs.name(2)}, twice,")


def standard_shapes(given: Given) -> list[Shape] | None:
    """Attention of ONNX's own domain: the result, keys and values with those of the past, and the scores."""
    query, *new = (given.shape(index) for index in range(3))
    if query is None or any(shape is None for shape in new):
        return None
    joined = len(query) == 3
    heads = int(given.attribute("q_num_heads", 0))
    caches = _caches(given, query, new, (heads, given.attribute("kv_num_heads", 0)), 4)
    size, keys = caches[1][3], caches[0][2]
    if joined:
        result = (*query[:2], None if size is None else size * number(heads))
        return [result, *caches, (query[0], number(heads), query[1], keys)]
    return [(*query[:3], size), *caches, (*query[:3], keys)]


def _caches(
    given: Given, query: Sequence[Size | None], new: Sequence[Shape], counts: tuple[int, int], place: int
) -> list[tuple[Size | None, ...]]:
    """The shapes of keys and values [batch, heads, sequence, size], the past ones, inputs `place` and on, first.

    `counts` are the numbers of heads of the queries, and of the keys and values.
    """
    found: list[tuple[Size | None, ...]] = []
    for index, shape in enumerate(new):
        assert shape is not None
        past, heads = given.shape(place + index), counts[1]
        apart = len(shape) == 4
        steps = shape[2] if apart else shape[1]
        old = number(0) if past is None else past[2]
        if past is None and given.has(place):
            old = None
        total = None if old is None or steps is None else old + steps
        alike = [_head_size(query, counts[0])] if index == 0 else []
        size = _agreed([None if past is None else past[3], *alike, _head_size(shape, heads)])
        found.append((shape[0], shape[1] if apart else number(heads), total, size))
    return found


def _head_size(shape: Sequence[Size | None], heads: int) -> Size | None:
    """The size of each head of queries, keys or values."""
    return shape[3] if len(shape) == 4 else _divided(shape[2], heads)


def _agreed(sizes: Sequence[Size | None]) -> Size | None:
    """One of sizes that are equal: a number, if one shows it."""
    known = [size for size in sizes if size is not None]
    return next((size for size in known if size.number is not None), known[0] if known else None)


def _group_query_shapes(given: Given) -> list[Shape] | None:
    query, heads, key_heads = given.shape(), given.attribute("num_heads"), given.attribute("kv_num_heads")
    if query is None or len(query) != 3:
        return None
    size = _divided(query[2], heads if given.has(1) else heads + 2 * key_heads)
    total, past = given.sizes(6), given.shape(3)
    old = number(0) if not given.has(3) else past[2] if past is not None else None
    keys: Size | None = None
    if given.attribute("sliding_window_cache", 0):
        keys = old
    elif total is not None and len(total) == 1 and old is not None:
        keys = larger(total[0], old)
    tables = given.shape(7)
    if given.attribute("do_rotary", 0) and total is not None and tables is not None and tables[0] is not None:
        angles = tables[0].number
        if angles is not None and total[0].names:
            given.limit(total[0], angles)
    cache = (query[0], number(key_heads), keys, _stored(given, size))
    return [(*query[:2], _times(size, heads)), cache, cache]


def _stored(given: Given, size: Size | None) -> Size | None:
    """The last dimension of a cache of GroupQueryAttention: integers of 4 bits are two in a byte."""
    return _divided(size, 2) if given.attribute("kv_cache_bit_width", 0) == 4 else size


def _multi_head_shapes(given: Given) -> list[Shape] | None:
    query, key, value = given.shape(), given.shape(1), given.shape(2)
    heads = given.attribute("num_heads")
    if query is None or key is None or value is None or len(query) != 3:
        return None
    caches = _caches(given, query, (key, value), (heads, heads), 6)
    size = caches[1][3]
    return [(*query[:2], None if size is None else size * number(heads)), *caches]


def packed_shapes(given: Given) -> list[Shape] | None:
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


def _flops(_node: onnx.NodeProto, inputs: Sequence[Dims], _output: Dims) -> float:
    """Two products of the queries with all keys, and the softmax between them."""
    query, key = inputs[0], inputs[1] if len(inputs) > 1 and len(inputs[1]) >= 2 else inputs[0]
    return 4.0 * prod(query) * key[-2]


_NORMS = "q_norm_epsilon k_norm_epsilon qk_norm_epsilon"
_SCORES = "mask_filter_value qk_matmul_output_mode softmax_precision"

_TURNED = ((Part(0, LAST),),)

OPERATORS = (
    Operator(
        "Attention",
        shapes=standard_shapes,
        needs=standard,
        caches={1: 4, 2: 5},
        factors=EVERY,
        flops=_flops,
        unread=_SCORES,
    ),
    Operator(
        "Attention",
        MICROSOFT,
        shapes=packed_shapes,
        needs=packed,
        caches={1: 4},
        factors=EVERY,
        flops=_flops,
        unread=_SCORES,
    ),
    Operator(
        "MultiHeadAttention",
        MICROSOFT,
        shapes=_multi_head_shapes,
        needs=multi_head,
        caches={1: 6, 2: 7},
        filled=((Part(2, LAST),),),
        factors=EVERY,
        flops=_flops,
        unread="mask_filter_value",
    ),
    Operator(
        "GroupQueryAttention",
        MICROSOFT,
        shapes=_group_query_shapes,
        needs=group_query,
        caches={1: 3, 2: 4},
        filled=((Part(0, slice(1)),),),  # ONNX Runtime divides by the number of items
        factors=EVERY,
        unread=f"rotary_interleaved {_NORMS}",
    ),
    Operator("DecoderMaskedMultiHeadAttention", MICROSOFT, filled=FIRST_FILLED),
    Operator("RotaryEmbedding", expanded=True, stricter="turned", filled=_TURNED),
    Operator("RotaryEmbedding", MICROSOFT, shapes=same_shape, needs=rotary, filled=_TURNED),
    Operator("MRotaryEmbedding", MICROSOFT, shapes=same_shape, needs=rotary_sections, filled=_TURNED),
)
