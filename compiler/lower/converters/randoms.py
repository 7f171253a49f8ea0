"""Random numbers: Philox2x32 with ten rounds, a counter-based generator (Salmon et al., Parallel Random Numbers, 2011).

An element's number follows from its index and a key of 64 bits. Without a `seed` the key is drawn from the operating
system in each run; with one it is the seed, so that each run gives the same numbers. They are not those of ONNX
Runtime, which continues one sequence from run to run.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.computed.numbers import table
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, fixed, scalar
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent

_ROUNDS = 10
_FACTOR = 0xD256D193
_STEP = 0x9E3779B9
_BITS = 0xFFFFFFFF
_KEY_BYTES = 8

_Words = tuple[tirx.Expr, tirx.Expr]


@converter("RandomUniform", "RandomUniformLike")
def _uniform(ctx: Context, data: relax.Expr | None = None, *_: Any) -> relax.Expr:
    """Numbers from `low` to below `high`."""
    low, high = float(ctx.attrs.get("low", 0.0)), float(ctx.attrs.get("high", 1.0))
    found = random_numbers(ctx, ctx.result(), lambda words: _unit(words, at_end=False) * (high - low) + low)
    return as_dtype(found, _wanted(ctx, data))


@converter("RandomNormal", "RandomNormalLike")
def _normal(ctx: Context, data: relax.Expr | None = None, *_: Any) -> relax.Expr:
    """Numbers of a normal distribution, by the transform of Box and Muller.

    Both numbers of the transform are tensors: LLVM takes 1.5 s for functions of the generator's own expressions.
    """
    op, key = relax.op, _key(ctx)
    mean, scale = (scalar(float(ctx.attrs.get(k, d)), "float32") for k, d in (("mean", 0.0), ("scale", 1.0)))
    share = random_numbers(ctx, ctx.result(), lambda words: _unit(words, at_end=True), key)
    turn = random_numbers(ctx, ctx.result(), lambda words: _unit(words[::-1], at_end=False), key)
    radius = op.sqrt(op.multiply(op.log(share), scalar(-2.0, "float32")))
    wave = op.cos(op.multiply(turn, scalar(2 * math.pi, "float32")))
    found = op.add(op.multiply(op.multiply(radius, wave), scale), mean)
    return as_dtype(ctx.bb.emit(found), _wanted(ctx, data))


@converter("Bernoulli")
def _bernoulli(ctx: Context, data: relax.Expr) -> relax.Expr:
    """1 with the probability that the data give, else 0."""
    drawn = random_numbers(ctx, dims_of(data), lambda words: _unit(words, at_end=False))
    hit = ctx.bb.emit(relax.op.less(drawn, as_dtype(data, "float32")))
    return as_dtype(hit, _wanted(ctx, data))


@converter("Multinomial")
def _multinomial(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Classes by their logarithmic probabilities: the largest of these with Gumbel noise added to each."""
    rows, classes = dims_of(data)
    count = int(ctx.attrs.get("sample_size", 1))
    op = relax.op
    drawn = random_numbers(
        ctx, (rows, count, classes), lambda words: _unit(words, at_end=True) * tirx.const(1 - 2.0**-24, "float32")
    )
    noise = op.negative(op.log(op.negative(op.log(drawn))))
    likely = op.add(op.expand_dims(as_dtype(data, "float32"), 1), noise)
    wanted = ctx.attrs.get("dtype", onnx.TensorProto.INT32)
    return as_dtype(ctx.bb.emit(op.argmax(likely, axis=2)), helper.tensor_dtype_to_np_dtype(wanted).name)


def dropped_out(
    ctx: Context, data: relax.Expr, ratio: relax.Expr | None, training: relax.Expr
) -> tuple[relax.Expr, relax.Expr]:
    """Data of which a share of `ratio` is 0 and the others are scaled by the inverse of the rest, and which are kept.

    All are kept as they are unless `training` is true.
    """
    op = relax.op
    share = scalar(0.5, "float32") if ratio is None else _checked_ratio(ctx, ratio)
    if fixed(training) is None:
        share = op.multiply(share, op.reshape(as_dtype(training, "float32"), ()))
    drawn = random_numbers(ctx, dims_of(data), lambda words: _unit(words, at_end=False))
    kept = ctx.bb.emit(op.greater_equal(drawn, share))
    factor = ctx.bb.emit(op.divide(scalar(1.0, "float32"), op.subtract(scalar(1.0, "float32"), share)))
    scaled = op.multiply(data, as_dtype(factor, dtype_of(data)))
    return op.where(kept, scaled, scalar(0, dtype_of(data))), kept


def _checked_ratio(ctx: Context, ratio: relax.Expr) -> relax.Expr:
    """The ratio of a Dropout, in a run that ends with an error if it is not from 0 to less than 1."""

    def write(ins: Sequence[tirx.Buffer], out: tirx.Buffer) -> tirx.Stmt:
        share, zero, one = ins[0][0], tirx.const(0.0, "float32"), tirx.const(1.0, "float32")
        right = asserted(ctx, tirx.all(share >= zero, share < one), "the ratio is not from 0 to less than 1")
        return tirx.SeqStmt([right, tirx.BufferStore(out, share, [0])])

    given = relax.op.reshape(as_dtype(ratio, "float32"), (1,))
    return relax.op.reshape(table(ctx, [ctx.bb.emit(given)], [1], write, "float32", "ratio"), ())


def random_numbers(
    ctx: Context, shape: Sequence[Extent], drawn: Callable[[_Words], tirx.Expr], key: relax.Expr | None = None
) -> relax.Expr:
    """A tensor of float32 whose elements `drawn` computes, each from two random words of 32 bits.

    With equal keys and shapes the words are the same.
    """
    if ctx.backend != "cpu":
        raise NotImplementedError("random numbers are drawn on the CPU")

    def compute(given: list[te.Tensor], _: list[tirx.Expr], dims: list[tirx.Expr]) -> te.Tensor:
        def element(*place: tirx.Var) -> tirx.Expr:
            index: tirx.Expr = tirx.const(0, "int64")
            for size, number in zip(dims, place, strict=True):
                index = index * size + number
            return drawn(_words(index, given[0]))

        return te.compute(dims, element, name="random")

    return emit_sized(ctx.bb, compute, [_key(ctx) if key is None else key], [], shape, "float32", "random", opaque=True)


def _key(ctx: Context) -> relax.Expr:
    """The two words of the key."""
    seed = ctx.attrs.get("seed")
    if seed is not None:
        return constant(np.array([struct.unpack("<I", struct.pack("<f", seed))[0], 0], np.uint32))

    def write(_: Sequence[tirx.Buffer], key: tirx.Buffer) -> tirx.Stmt:
        place = tirx.call_intrin("handle", "tirx.address_of", key[0])
        return tirx.Evaluate(tirx.call_extern("int32", "getentropy", place, tirx.const(_KEY_BYTES, "uint64")))

    return table(ctx, [], [2], write, "uint32", "random_key")


def _words(index: tirx.Expr, key: te.Tensor) -> _Words:
    """The two words that the generator makes of an index."""

    def word(number: int) -> tirx.Expr:
        return tirx.const(number, "uint32")

    first, second = (index.astype("uint64") & tirx.const(_BITS, "uint64")).astype("uint32"), key[1]
    for number in range(_ROUNDS):
        product = first.astype("uint64") * tirx.const(_FACTOR, "uint64")
        high = (product >> tirx.const(32, "uint64")).astype("uint32")
        turn = key[0] + word(_STEP * number & _BITS)
        first, second = high ^ turn ^ second, product.astype("uint32")
    return first, second


def _unit(words: _Words, *, at_end: bool) -> tirx.Expr:
    """A number from 0 to below 1, or with `at_end` from above 0 to 1, of 24 random bits."""
    bits = (words[0] >> tirx.const(8, "uint32")) + tirx.const(int(at_end), "uint32")
    return bits.astype("float32") * tirx.const(2.0**-24, "float32")


def _wanted(ctx: Context, data: relax.Expr | None) -> str:
    """The dtype that an attribute asks for, else that of the data."""
    wanted = ctx.attrs.get("dtype")
    if wanted is not None:
        return str(helper.tensor_dtype_to_np_dtype(wanted).name)
    return "float32" if data is None else dtype_of(data)
