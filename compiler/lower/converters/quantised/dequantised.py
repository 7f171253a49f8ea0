"""Nodes between DequantizeLinear and QuantizeLinear, computed in integers on devices that multiply integers.

Products of float32 with a large constant weight read its integers, too, and multiply them in float32.

A node whose operands are dequantised integers reads these integers instead; what DequantizeLinear computes is left out
if nothing else reads it. A QuantizeLinear that follows multiplies the exact sums by one factor, as ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from heterocc.artifacts.packed import PackedArray
from heterocc.compiler.lower.converters.quantised.blocks import (
    BYTE,
    TILE,
    BlockedWeight,
    MatrixCodes,
    blocked_product,
    fills_words,
    gathered_rows,
)
from heterocc.compiler.lower.converters.quantised.integers import integer_convolution, integer_product
from heterocc.compiler.lower.converters.registry import STANDARD_DOMAINS, Context, own_converter
from heterocc.compiler.lower.converters.values import clipped, dtype_of, rank_of, scalar
from heterocc.compiler.lower.straight import constant

op = relax.op


_LARGE = 1 << 12
"""The fewest elements of a weight whose integers are read by a product of float32."""

_LONGEST = 512
"""The most terms of a block of such a weight: they are unpacked at once for many rows."""


@dataclass(frozen=True, eq=False)
class Dequantised:
    """(data - zero) · scale, with constant scales along `axis`; `array` is the data if it is constant."""

    data: relax.Expr
    array: np.ndarray | None
    scale: np.ndarray
    zero: np.ndarray
    axis: int


@dataclass(frozen=True, eq=False)
class Scaled:
    """sums · factor, where the sums are exact in int32 and the factors constant."""

    sums: relax.Expr
    factor: np.ndarray


@dataclass(frozen=True, eq=False)
class Blocks:
    """A constant matrix in blocks along `axis`: (array - zeros) · scales, with a zero for each block or 0 for all.

    `kind` is the dtype in the model. Those of 4 bits have a byte for each number in the array, unless it is packed.
    """

    kind: str
    array: np.ndarray | PackedArray
    scales: np.ndarray
    zeros: np.ndarray
    axis: int
    block: int

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return 4 if self.kind in ("int4", "uint4") else BYTE

    def weight(self) -> BlockedWeight:
        """The matrix as a weight whose terms lie along the blocks' axis, with codes that are not negative."""
        scales, zeros = (a if self.axis else a.T for a in (self.scales, self.zeros))
        columns, terms = self.array.shape if self.axis else self.array.shape[::-1]
        first = 1 << (self.bits - 1) if self.kind in ("int4", "int8") else 0
        codes = MatrixCodes(self.array, self.axis, first, (columns, scales.shape[1], self.block))
        middle = (zeros.astype(np.int16) + first).astype(np.uint8) if zeros.ndim == 2 else first
        return BlockedWeight(self.bits, terms, codes, scales, middle)


def in_integers(ctx: Context, inputs: list[relax.Expr | None]) -> relax.Expr | None:
    """The node computed in integers, None if its operands are not dequantised integers."""
    convert = _IN_INTEGERS.get(ctx.node.op_type) if ctx.node.domain in STANDARD_DOMAINS else None
    return convert(ctx, inputs) if ctx.integers and convert is not None else None


def _note(ctx: Context, number: int) -> Dequantised | None:
    name = ctx.node.input[number] if number < len(ctx.node.input) else ""
    found = ctx.notes.get(name)
    return found if isinstance(found, Dequantised) else None


def _operands(ctx: Context) -> tuple[Dequantised, Dequantised, np.ndarray] | None:
    """The data with one scale, a constant weight, and the weight as an array."""
    data, weight = _note(ctx, 0), _note(ctx, 1)
    if data is None or weight is None or weight.array is None or data.array is not None or data.scale.size != 1:
        return None
    if dtype_of(data.data) not in ("int8", "uint8") or weight.array.dtype.itemsize != 1:
        return None
    return data, weight, weight.array


def _finish(
    ctx: Context, sums: relax.Expr | None, operands: tuple[Dequantised, Dequantised], channels: tuple[int, ...]
) -> relax.Expr | None:
    """The sums with the node's bias, times the scales, which differ along the axis that is -1 in `channels`."""
    data, weight = operands
    if sums is None:
        return None
    steps = data.scale.reshape(()).astype(np.float32) * weight.scale.astype(np.float32)
    if len(ctx.node.input) > 2 and ctx.node.input[2]:
        bias = _note(ctx, 2)
        if bias is None or bias.array is None or np.any(bias.zero) or not np.allclose(bias.scale, steps, rtol=1e-5):
            return None
        shape = channels if bias.array.size > 1 else (1,)
        sums = ctx.bb.emit(op.add(sums, constant(bias.array.astype(np.int32).reshape(shape))))
    factor = steps.reshape(channels if steps.size > 1 else ())
    ctx.notes[ctx.node.output[0]] = Scaled(sums, factor)
    return op.multiply(op.astype(sums, "float32"), constant(factor))


def _with_blocks(ctx: Context, inputs: list[relax.Expr | None], axis: int) -> relax.Expr | None:
    """The product of the first input and a constant weight in blocks along this axis, which has the terms."""
    found = ctx.notes.get(ctx.node.input[1])
    if not isinstance(found, Blocks) or found.axis != axis or inputs[0] is None:
        return None
    return blocked_product(ctx, inputs[0], found.weight(), rounded=False)


def _with_integers(ctx: Context, inputs: list[relax.Expr | None], axis: int) -> relax.Expr | None:
    """The product of the first input in float32 and a large constant weight, whose terms lie along this axis."""
    found = _with_blocks(ctx, inputs, axis)
    weight = _note(ctx, 1)
    if found is not None or weight is None or weight.array is None or inputs[0] is None or ctx.backend != "cpu":
        return found
    blocks = _in_long_blocks(weight.array, weight, axis)
    if blocks is None or dtype_of(inputs[0]) != "float32":
        return None
    return blocked_product(ctx, inputs[0], blocks, rounded=False)


def _in_long_blocks(array: np.ndarray, weight: Dequantised, axis: int) -> BlockedWeight | None:
    """A large weight whose terms lie along an axis, in as few blocks as are unpacked at once.

    None for a small one, and for one whose scales are not those of its columns.
    """
    if array.ndim != 2 or array.dtype.itemsize != 1 or array.size < _LARGE:
        return None
    if max(weight.scale.size, weight.zero.size) > 1 and weight.axis == axis:
        return None
    array = array if axis else array.T
    columns, terms = array.shape
    blocks = -(-terms // _LONGEST)
    block = -(-terms // (blocks * TILE)) * TILE
    first = -int(np.iinfo(array.dtype).min)
    codes = np.full((columns, blocks * block), first, np.uint8)
    codes[:, :terms] = array.astype(np.int16) + first
    scales = np.broadcast_to(weight.scale.reshape(-1, 1), (columns, blocks)).astype(np.float32)
    middle = (weight.zero.astype(np.int16) + first).astype(np.uint8).reshape(-1, 1)
    zeros: np.ndarray | int = int(middle[0, 0])
    if middle.size > 1:
        zeros = np.ascontiguousarray(np.broadcast_to(middle, (columns, blocks)))
    return BlockedWeight(8, terms, codes.reshape(columns, blocks, block), scales, zeros)


def _matmul(ctx: Context, inputs: list[relax.Expr | None]) -> relax.Expr | None:
    found = _operands(ctx)
    if found is None:
        return _with_integers(ctx, inputs, 0)
    data, weight, array = found
    if array.ndim != 2 or (weight.scale.size > 1 and weight.axis % 2 != 1):
        return None
    sums = integer_product(ctx, data.data, data.zero, array, weight.zero)
    return _finish(ctx, sums, (data, weight), (-1,))


def _gemm(ctx: Context, inputs: list[relax.Expr | None]) -> relax.Expr | None:
    found, attrs = _operands(ctx), ctx.attrs
    if attrs.get("transA", 0) or attrs.get("alpha", 1.0) != 1.0 or attrs.get("beta", 1.0) != 1.0:
        return None
    transposed = bool(attrs.get("transB", 0))
    if found is None:
        product = _with_integers(ctx, inputs, 1 if transposed else 0)
        bias = inputs[2] if len(inputs) > 2 else None
        return product if product is None or bias is None else op.add(product, bias)
    data, weight, array = found
    if weight.scale.size > 1 and weight.axis % 2 != (0 if transposed else 1):
        return None
    sums = integer_product(ctx, data.data, data.zero, array.T if transposed else array, weight.zero)
    return _finish(ctx, sums, (data, weight), (-1,))


def _conv(ctx: Context, _inputs: list[relax.Expr | None]) -> relax.Expr | None:
    found = _operands(ctx)
    if found is None:
        return None
    data, weight, array = found
    if weight.scale.size > 1 and weight.axis != 0:
        return None
    sums = integer_convolution(ctx, data.data, data.zero, array, weight.zero)
    return _finish(ctx, sums, (data, weight), (1, -1, 1, 1))


def _blocks(ctx: Context, array: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None) -> Blocks | None:
    """The note of a constant matrix that is dequantised in blocks; None for another one."""
    block, axis = int(ctx.attrs.get("block_size", 0)), int(ctx.attrs.get("axis", 1)) % max(array.ndim, 1)
    kind = ctx.values[ctx.node.input[0]].dtype
    if array.ndim != 2 or scales.ndim != 2 or kind not in ("int4", "uint4", "int8", "uint8"):
        return None
    points = np.zeros((), np.int16) if zeros is None else zeros
    return Blocks(kind, array, scales.astype(np.float32), points, axis, block)


def _gather(ctx: Context, inputs: list[relax.Expr | None]) -> relax.Expr | None:
    """Gather the integers of a constant table and dequantise what was gathered."""
    table = _note(ctx, 0)
    weight = _as_weight(ctx)
    if weight is not None and inputs[1] is not None:
        return gathered_rows(ctx, weight, inputs[1])
    gather = own_converter("", "Gather")
    if table is None or table.array is None or gather is None:
        return None
    array, axis = table.array, int(ctx.attrs.get("axis", 0)) % table.array.ndim

    def gathered(values: np.ndarray) -> relax.Expr:
        """What belongs to the integers that are gathered of values that differ along the table's axis, if at all."""
        shape = [size if a == table.axis else 1 for a, size in enumerate(array.shape)]
        if values.size == 1:
            return scalar(float(values.reshape(())), "float32")
        found = constant(values.reshape(shape).astype(np.float32))
        if axis == table.axis:
            return ctx.bb.normalize(gather(ctx, found, inputs[1]))
        before, after = shape[:axis], shape[axis + 1 :]
        return constant(values.reshape(*before, *(1,) * rank_of(inputs[1]), *after).astype(np.float32))

    rows = op.astype(ctx.bb.normalize(gather(ctx, constant(array), inputs[1])), "float32")
    if np.any(table.zero):
        rows = op.subtract(rows, gathered(table.zero))
    return op.multiply(rows, gathered(table.scale))


def _as_weight(ctx: Context) -> BlockedWeight | None:
    """The table of a Gather as the weight of a product whose columns are its rows.

    None if it is not in blocks and no product of the partition has a weight of this form. Whether the product's is
    the same one is not known here: if so, as with tied embeddings, it is stored once, and else nothing is lost.
    """
    found = ctx.notes.get(ctx.node.input[0])
    if ctx.backend != "cpu" or not isinstance(found, Blocks | Dequantised) or found.array is None:
        return None
    if found.array.ndim != 2 or ctx.attrs.get("axis", 0) % 2:
        return None
    if isinstance(found, Blocks):
        return found.weight() if found.axis == 1 and fills_words(found.bits, found.block) else None
    return _in_long_blocks(found.array, found, 1) if _is_multiplied(ctx, found.array.shape) else None


def _is_multiplied(ctx: Context, shape: tuple[int, ...]) -> bool:
    """Whether a product of the partition has a dequantised weight that has a table's rows as columns."""
    made = {node.output[0] for node in ctx.partition if node.op_type == "DequantizeLinear"}
    for node in ctx.partition:
        if node.op_type not in ("Gemm", "MatMul") or node.input[1] not in made:
            continue
        rows_first = any(a.name == "transB" and a.i for a in node.attribute)
        if ctx.values[node.input[1]].shape == (shape if rows_first else shape[::-1]):
            return True
    return False


def _relu(ctx: Context, inputs: list[relax.Expr | None]) -> relax.Expr | None:
    found = ctx.notes.get(ctx.node.input[0])
    if isinstance(found, Scaled) and np.all(found.factor >= 0):
        sums = ctx.bb.emit(op.maximum(found.sums, constant(np.zeros((), np.int32))))
        ctx.notes[ctx.node.output[0]] = Scaled(sums, found.factor)
        return op.nn.relu(inputs[0])
    return None


def _quantise(ctx: Context, inputs: list[relax.Expr | None]) -> relax.Expr | None:
    found = ctx.notes.get(ctx.node.input[0])
    scale = None if inputs[1] is None else ctx.array(inputs[1])
    zero = None if len(inputs) < 3 or inputs[2] is None else ctx.array(inputs[2])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or scale.dtype != np.float32:
        return None
    if zero.dtype not in (np.uint8, np.int8) or inputs[0] is None or dtype_of(inputs[0]) != "float32":
        return None
    limits = np.iinfo(zero.dtype)
    if isinstance(found, Scaled):
        factor = constant(np.asarray(found.factor / scale.reshape(()), np.float32))
        number = op.round(op.multiply(op.astype(found.sums, "float32"), factor))
    else:  # by operations that can run with the channels last, unlike TVM's quantize
        number = op.round(op.divide(inputs[0], constant(scale.reshape(()))))
    number = op.add(number, scalar(float(zero.reshape(())), "float32"))
    return op.astype(clipped(number, limits.min, limits.max, "float32"), zero.dtype.name)


def note_dequantised(ctx: Context, data: relax.Expr, scale: relax.Expr, zero: relax.Expr | None) -> None:
    """Remember that the node's output is dequantised integers of 8 bits, or of 32 for a bias."""
    factors, array = ctx.array(scale), ctx.array(data)
    if ctx.attrs.get("block_size", 0) and array is not None and factors is not None:
        blocks = _blocks(ctx, array, factors, None if zero is None else ctx.array(zero))
        if blocks is not None and (zero is None or ctx.is_known(zero)):
            ctx.notes[ctx.node.output[0]] = blocks
        return
    points = np.zeros((), np.int32) if zero is None else ctx.array(zero)
    if not ctx.integers or ctx.attrs.get("block_size", 0) or factors is None or points is None:
        return
    if factors.dtype != np.float32 or dtype_of(data) not in ("int8", "uint8", "int32"):
        return
    axis = int(ctx.attrs.get("axis", 1)) % max(rank_of(data), 1)
    points = points if np.any(points) else np.zeros((), points.dtype)
    if points.size == 1:
        points = points.reshape(())
    if factors.size == 1:
        factors = factors.reshape(())
    ctx.notes[ctx.node.output[0]] = Dequantised(data, array, factors, points, axis)


def is_read_in_blocks(ctx: Context) -> bool:
    """Whether only nodes that read a matrix in blocks in its place read the node's output.

    Its numbers, four bytes and more for each integer, are then not computed beforehand: those of all layers would be in
    memory together.
    """
    name = ctx.node.output[0]
    noted = ctx.notes.get(name)
    readers = [(node, n) for node in ctx.partition for n, given in enumerate(node.input) if given == name]
    if not ctx.integers or not isinstance(noted, Blocks) or not readers:
        return False
    return all(_reads_blocks(node, number, noted) for node, number in readers)


def _reads_blocks(node: onnx.NodeProto, number: int, noted: Blocks) -> bool:
    """Whether a node reads the blocks of a matrix that is its input of this number."""
    if node.domain not in STANDARD_DOMAINS:
        return False
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Gather":
        return number == 0 and noted.axis == 1 and not attrs.get("axis", 0) % 2 and fills_words(noted.bits, noted.block)
    if node.op_type == "Gemm":
        plain = not attrs.get("transA", 0) and attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0
        return number == 1 and plain and noted.axis == int(bool(attrs.get("transB", 0)))
    return node.op_type == "MatMul" and number == 1 and noted.axis == 0


_IN_INTEGERS: dict[str, Callable[[Context, list[relax.Expr | None]], relax.Expr | None]] = {
    "Conv": _conv,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "QuantizeLinear": _quantise,
    "Relu": _relu,
}
