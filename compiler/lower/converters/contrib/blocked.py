"""Products with weights of 2, 4 or 8 bits in blocks: MatMulNBits and MatMulBnb4."""

from __future__ import annotations

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.quantised.blocks import (
    BlockedWeight,
    OrderedCodes,
    PackedCodes,
    blocked_product,
    unpacked,
)
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import dtype_of, rank_of
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.operators.layers.products import ROUNDED

op = relax.op

_UNROUNDED = frozenset({(2, 16), (2, 256)})
"""Bits and block sizes for which ONNX Runtime never rounds the other factor."""


_GROUPED = 4
"""Bits with which ONNX Runtime computes blocks in any order."""

_FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
"""The numbers of the codes of bitsandbytes' FP4 without their highest bit, which is the sign."""

_NF4 = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)
"""The numbers of the codes of NF4: Dettmers et al., QLoRA (2023), appendix E."""


@converter("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(ctx: Context, a: relax.Expr, b: relax.Expr, largest: relax.Expr) -> relax.Expr:
    """Product with a weight of bitsandbytes' codes of 4 bits, in blocks along all of its numbers, row by row."""
    columns, terms, block = ctx.attrs["N"], ctx.attrs["K"], ctx.attrs["block_size"]
    packed, scales = ctx.array(b), ctx.array(largest)
    if packed is None or scales is None:
        raise NotImplementedError("the weights and their scales must be constant")
    if not ctx.attrs.get("transB", 1) or terms % block:
        raise NotImplementedError("the weight must be transposed, and a block within a row")
    flat = packed.reshape(-1)
    codes = np.stack([flat >> 4, flat & 15], axis=-1).reshape(-1)[: columns * terms]
    table = _NF4 if ctx.attrs["quant_type"] else np.concatenate([_FP4, -_FP4])
    split = codes.reshape(columns, terms // block, block)
    weight = BlockedWeight(4, terms, split, scales.reshape(columns, -1), 0, table)
    return blocked_product(ctx, a, weight, rounded=False)


@converter("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(
    ctx: Context,
    a: relax.Expr,
    b: relax.Expr,
    scales: relax.Expr,
    zeros: relax.Expr | None = None,
    groups: relax.Expr | None = None,
    bias: relax.Expr | None = None,
) -> relax.Expr:
    """Product with a weight of codes of 2, 4 or 8 bits in blocks along its terms."""
    weight = _weight(ctx, b, scales, zeros)
    if groups is not None:
        product = _in_groups(ctx, a, weight, groups)
    else:
        product = blocked_product(ctx, a, weight, rounded=_is_rounded(ctx, weight))
    return product if bias is None else op.add(product, bias)


def _in_groups(ctx: Context, a: relax.Expr, weight: BlockedWeight, groups: relax.Expr) -> relax.Expr:
    """The product with a weight whose terms belong to blocks in any order, as GPTQ's `desc_act` has them.

    Terms and codes are put in the order of the blocks. If a block has more terms than others, the weight is of floats.
    """
    if weight.bits != _GROUPED:
        raise NotImplementedError(f"g_idx with weights of {weight.bits} bits is not supported")
    known = ctx.array(groups)
    if known is None:
        raise NotImplementedError("g_idx must be constant")
    if not isinstance(weight.zeros, int):
        raise NotImplementedError("zero points beside g_idx, which ONNX Runtime ignores, are not supported")
    block_of = known[: weight.terms]
    if block_of.size and not 0 <= block_of.min() <= block_of.max() < weight.scales.shape[1]:
        raise NotImplementedError("g_idx has a number that is not that of a block")
    places = _places(block_of, weight)
    if ctx.backend == "cpu" and places is not None and isinstance(weight.codes, PackedCodes):
        blocks = weight.scales.shape[1]
        ordered = OrderedCodes(weight.codes, places, (weight.columns, blocks, weight.block))
        data = a if places.max() < weight.terms else op.nn.pad(a, [0, 0] * (rank_of(a) - 1) + [0, 1])
        taken = ctx.bb.emit(op.take(ctx.bb.normalize(data), constant(places), rank_of(a) - 1, mode="clip"))
        whole = BlockedWeight(weight.bits, len(places), ordered, weight.scales, weight.zeros)
        return blocked_product(ctx, taken, whole, rounded=False)
    codes = weight.codes[:].reshape(weight.columns, -1)[:, : weight.terms].astype(np.float32)
    numbers = (codes - weight.zeros) * weight.scales.astype(np.float32)[:, block_of]
    return ctx.bb.normalize(op.matmul(a, constant(np.ascontiguousarray(numbers.T).astype(dtype_of(a)))))


def _places(block_of: np.ndarray, weight: BlockedWeight) -> np.ndarray | None:
    """The terms of each block in turn, and the number of terms for places without one; None if a block has too many."""
    blocks, block = weight.scales.shape[1], weight.block
    counts = np.bincount(block_of, minlength=blocks)
    if not block_of.size or counts.max() > block:
        return None
    order = np.argsort(block_of, kind="stable")
    inside = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full(blocks * block, weight.terms, np.int64)
    found[block_of[order] * block + inside] = order
    return found


def _weight(ctx: Context, b: relax.Expr, scales: relax.Expr, zeros: relax.Expr | None) -> BlockedWeight:
    bits, block = ctx.attrs.get("bits", 4), ctx.attrs["block_size"]
    columns, terms = ctx.attrs["N"], ctx.attrs["K"]
    packed, factors = ctx.array(b), ctx.array(scales)
    points = None if zeros is None else ctx.array(zeros)
    if packed is None or factors is None or (zeros is not None and points is None):
        raise NotImplementedError("the weights, scales and zero points must be constant")
    if bits not in (2, 4, 8):
        raise NotImplementedError(f"weights of {bits} bits are not supported")
    blocks = -(-terms // block)
    codes = PackedCodes(packed.reshape(columns, -1), bits, (columns, blocks, block))
    middle: np.ndarray | int = 1 << (bits - 1)
    if points is not None and points.dtype == np.uint8:
        middle = np.ascontiguousarray(unpacked(points.reshape(columns, -1), bits)[:, :blocks])
    elif points is not None:
        middle = points.reshape(columns, blocks)
    return BlockedWeight(bits, terms, codes, factors.reshape(columns, blocks), middle)


def _is_rounded(ctx: Context, weight: BlockedWeight) -> bool:
    """Whether ONNX Runtime rounds the other factor to int8: where it may, and has a kernel for it."""
    if ctx.attrs.get("accuracy_level", 0) != ROUNDED or (weight.bits, weight.block) in _UNROUNDED:
        return False
    return isinstance(weight.zeros, int) or weight.zeros.dtype == np.uint8
