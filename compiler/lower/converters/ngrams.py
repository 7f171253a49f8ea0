"""Converter of TfIdfVectorizer over integers: counts of sequences of tokens (n-grams), weighted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, fixed_size, is_known_empty
from heterocc.compiler.lower.straight import constant

op = relax.op


@converter("TfIdfVectorizer")
def tf_idf_vectorizer(ctx: Context, data: relax.Expr) -> relax.Expr:
    """TfIdfVectorizer of integer tokens [batch, tokens] or [tokens], in all modes."""
    attrs = ctx.attrs
    if ctx.backend != "cpu":
        raise NotImplementedError("counts of n-grams are wrong on GPUs")
    if "pool_int64s" not in attrs:
        raise NotImplementedError("strings are not supported")
    shape = dims_of(data)
    length, columns = fixed_size(data, -1), list(attrs["ngram_indexes"])
    if len(set(columns)) != len(columns):
        raise NotImplementedError("several n-grams that are counted together are not supported")
    if is_known_empty(data):
        raise NotImplementedError("empty tensors are not supported")
    batch = shape[0] if len(shape) == 2 else 1
    tokens = ctx.bb.emit(op.reshape(data, (batch, length)))
    counts = []
    for size, grams in _grams(attrs):
        least, most = attrs["min_gram_length"], attrs["max_gram_length"]
        if not least <= size <= most:
            counts.append(ctx.bb.emit(op.zeros((batch, len(grams)), "float32")))
        else:
            skips = range(attrs["max_skip_count"] + 1 if size > 1 else 1)
            counts.append(_counts(ctx, tokens, grams.astype(dtype_of(data)), skips))
    found = counts[0] if len(counts) == 1 else ctx.bb.emit(op.concat(counts, 1))
    weights = np.array(attrs.get("weights", [1.0] * len(columns)), np.float32)
    mode = ctx.text("mode", "TF")
    if mode == "IDF":
        found = ctx.bb.emit(op.astype(op.greater(found, constant(np.zeros((), np.float32))), "float32"))
    if mode != "TF":
        found = ctx.bb.emit(op.multiply(found, constant(weights.reshape(1, -1))))
    width = max(columns) + 1
    if width > len(columns):
        found = ctx.bb.emit(op.concat([found, op.zeros((batch, 1), "float32")], 1))
    order = np.full(width, len(columns), np.int64)
    order[columns] = np.arange(len(columns))
    found = op.take(found, constant(order), axis=1, mode="clip")
    return found if len(shape) == 2 else op.reshape(ctx.bb.emit(found), (width,))


def _grams(attrs: Mapping[str, Any]) -> list[tuple[int, np.ndarray]]:
    """The n-grams of the pool by length: (n, array [count, n]), in the pool's order."""
    pool, starts = np.array(attrs["pool_int64s"], np.int64), [*attrs["ngram_counts"]]
    found = []
    for number, begin in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(pool)
        if end > begin:
            found.append((number + 1, pool[begin:end].reshape(-1, number + 1)))
    return found


def _counts(ctx: Context, tokens: relax.Expr, grams: np.ndarray, skips: range) -> relax.Expr:
    """The occurrences [batch, n-grams] with `skips` tokens between neighbours, as float32."""
    batch, length = dims_of(tokens)
    number, size = grams.shape

    def compute(x: te.Tensor, table: te.Tensor) -> te.Tensor:
        place = te.reduce_axis((0, length), "place")

        def at(b: tirx.Var, g: tirx.Var) -> tirx.Expr:
            total = tirx.const(0, "float32")
            for skip in skips:
                reach = (size - 1) * (skip + 1)
                same = [x[b, place + j * (skip + 1)] == table[g, j] for j in range(size)]
                hit = tirx.all(*same) if size > 1 else same[0]
                one, none = tirx.const(1, "float32"), tirx.const(0, "float32")
                inside = tirx.if_then_else(place < length - reach, tirx.Select(hit, one, none), none)
                total = total + inside if reach < length else total
            return te.sum(total, axis=place)

        return te.compute((batch, number), at, name="ngrams")

    return ctx.bb.emit_te(compute, tokens, constant(grams), primfunc_name_hint="ngrams")
