"""MatMulNBits: a product with a weight of 2, 4 or 8 bits in blocks."""

from __future__ import annotations

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.quantised.blocks import BlockedWeight, blocked_product, unpacked
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.operators.products import ROUNDED

op = relax.op

_UNROUNDED = frozenset({(2, 16), (2, 256)})
"""Bits and block sizes for which ONNX Runtime never rounds the other factor."""


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
    if groups is not None:
        raise NotImplementedError("g_idx is not supported")
    weight = _weight(ctx, b, scales, zeros)
    product = blocked_product(ctx, a, weight, rounded=_is_rounded(ctx, weight))
    return product if bias is None else op.add(product, bias)


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
    codes = unpacked(packed.reshape(columns, -1), bits)[:, : blocks * block].reshape(columns, blocks, block)
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
