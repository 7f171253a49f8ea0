"""Products with weights of 2, 4 or 8 bits in blocks, each with a scale and a zero point: MatMulNBits.

On the CPU the weights keep their bits: one kernel reads the codes and multiplies them in registers. Elsewhere they are
unpacked when compiling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.quantised.operators import known_array
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.requested import has_plain_sizes, requested
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, rank_of
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.operators.products import ROUNDED

op = relax.op

TILE = 16
"""Columns of the product whose codes lie side by side."""

TERMS = 4
"""Codes of a column that lie side by side in a word of 32 bits, one in each byte, for products of bytes."""

_UNROUNDED = frozenset({(2, 16), (2, 256)})
"""Bits and block sizes for which ONNX Runtime never rounds the other factor."""


@dataclass(frozen=True, slots=True)
class BlockedWeight:
    """A weight of `columns` × `terms`: (code - zero point) · scale.

    `codes` are uint8 [columns, blocks, block]; those beyond `terms` are not used. `scales` are float [columns, blocks],
    `zeros` uint8 or float [columns, blocks], or the middle of the codes' range for all.
    """

    bits: int
    terms: int
    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | int

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return len(self.codes)

    @property
    def block(self) -> int:
        """Codes of a block."""
        return int(self.codes.shape[2])

    def unpacked(self, dtype: str) -> np.ndarray:
        """The weight [terms, columns] as numbers."""
        middle = self.zeros if isinstance(self.zeros, int) else self.zeros[..., None].astype(np.float32)
        values = (self.codes.astype(np.float32) - middle) * self.scales[..., None].astype(np.float32)
        return np.ascontiguousarray(values.reshape(self.columns, -1)[:, : self.terms].T).astype(dtype)

    def words(self) -> np.ndarray:
        """The codes as int32 [tiles, blocks, words, TILE], which the CPU's kernel reads.

        A word has 4 bytes of 8 / bits codes of a column. With as many steps of 4 terms, byte j has in its lowest bits
        term j of the first step, then that of the next step.
        """
        steps = 8 // self.bits
        columns, blocks, block = self.codes.shape
        padded = np.zeros((-(-columns // TILE) * TILE, blocks, block), np.uint8)
        padded[:columns] = self.codes
        split = padded.reshape(-1, TILE, blocks, block // (steps * TERMS), steps, TERMS)
        joined = np.zeros((*split.shape[:4], TERMS), np.uint8)
        for step in range(steps):
            joined |= split[:, :, :, :, step] << (self.bits * step)
        return np.ascontiguousarray(joined.transpose(0, 2, 3, 1, 4)).view("<i4")[..., 0]

    def in_tiles(self, values: np.ndarray) -> np.ndarray:
        """Numbers of each block [columns, blocks] as [tiles, blocks, TILE]; zeros follow the last column."""
        padded = np.zeros((-(-self.columns // TILE) * TILE, values.shape[1]), values.dtype)
        padded[: self.columns] = values
        return np.ascontiguousarray(padded.reshape(-1, TILE, values.shape[1]).transpose(0, 2, 1))


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
    if ctx.backend == "cpu" and has_plain_sizes(a) and weight.block % (TERMS * 8 // weight.bits) == 0:
        product = _blocked_product(ctx, a, weight, rounded=_is_rounded(ctx, weight))
    else:
        product = op.matmul(a, constant(weight.unpacked(dtype_of(a))))
    return product if bias is None else op.add(product, bias)


def _weight(ctx: Context, b: relax.Expr, scales: relax.Expr, zeros: relax.Expr | None) -> BlockedWeight:
    bits, block = ctx.attrs.get("bits", 4), ctx.attrs["block_size"]
    columns, terms = ctx.attrs["N"], ctx.attrs["K"]
    packed, factors = known_array(ctx, b), known_array(ctx, scales)
    points = None if zeros is None else known_array(ctx, zeros)
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


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The codes of bytes along the last axis, the first of a byte in its lowest bits."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)


def _is_rounded(ctx: Context, weight: BlockedWeight) -> bool:
    """Whether ONNX Runtime rounds the other factor to int8: where it may, and has a kernel for it."""
    if ctx.attrs.get("accuracy_level", 0) != ROUNDED or (weight.bits, weight.block) in _UNROUNDED:
        return False
    return isinstance(weight.zeros, int) or weight.zeros.dtype == np.uint8


def _blocked_product(ctx: Context, a: relax.Expr, weight: BlockedWeight, *, rounded: bool) -> relax.Expr:
    dtype = dtype_of(a)
    data = as_dtype(ctx.bb.normalize(a), "float32")
    if more := weight.codes.shape[1] * weight.block - weight.terms:
        data = op.nn.pad(data, [0, 0] * (rank_of(a) - 1) + [0, more])
    data = ctx.bb.normalize(data)
    *rows, terms = dims_of(data)
    blocks = (*rows, terms // weight.block)
    codes = [((*rows, terms), "int8"), (blocks, "float32"), (blocks, "int32")]
    kinds = codes if rounded else [(blocks, "float32")]
    found = requested(ctx, "block_codes", [data], kinds, block=weight.block)
    factor = [ctx.bb.emit(relax.TupleGetItem(found, n)) for n in range(3)] if rounded else [data, found]
    zeros = [] if isinstance(weight.zeros, int) else [constant(weight.in_tiles(weight.zeros))]
    scales = constant(weight.in_tiles(weight.scales))
    given = [*factor, constant(weight.words()), scales, *zeros]
    result = [((*rows, weight.columns), "float32")]
    return as_dtype(requested(ctx, "blocked_product", given, result, bits=weight.bits, block=weight.block), dtype)
