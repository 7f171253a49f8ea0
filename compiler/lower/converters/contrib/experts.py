"""Mixtures of experts: MoE and QMoE. A router chooses some experts for each row, and only their weights are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.quantised.blocks import (
    BYTE,
    TERMS,
    TILE,
    BlockedWeight,
    PackedCodes,
    block_factor,
    unpacked,
    weight_tables,
)
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.requested import has_positive_sizes, requested
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, rank_of, scalar
from heterocc.compiler.lower.straight import constant

op = relax.op

Array = np.ndarray[Any, Any]

_LEAST_SHARE = 1e-8
"""ONNX Runtime leaves out experts of QMoE whose share is not larger."""

_NUMBERS = 32
"""The option `bits` of the kernel for weights that are not codes."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """The weights of a layer of all experts, as the kernel reads them: floats, or codes of TILE-padded columns."""

    columns: int
    terms: int
    stored: Array | BlockedWeight
    rounded: bool = False

    def product(self, ctx: Context, rows: relax.Expr, routes: _Routes, each: int) -> relax.Expr:
        """A product for each route, of rows that have `each` routes."""
        factor, options = [ctx.bb.normalize(as_dtype(rows, "float32"))], {"bits": _NUMBERS}
        if isinstance(self.stored, BlockedWeight):
            factor = block_factor(ctx, rows, self.stored, rounded=self.rounded)
            tables, options = weight_tables(ctx, self.stored, rounded=self.rounded)
        else:
            tables = [constant(self.stored)]
        tiles = -(-self.columns // TILE)
        options |= {"experts": routes.experts, "each": each, "tiles": tiles}
        result = [((*dims_of(routes.chosen), self.columns), "float32")]
        return requested(ctx, "expert_product", [*factor, routes.order, routes.starts, *tables], result, **options)


@dataclass(frozen=True, slots=True)
class _Routes:
    """The experts that are `chosen` for rows, int64 [rows, k], and their `shares`; the routes by expert.

    `starts` are the places of the first route of each expert in this order, and the end.
    """

    experts: int
    chosen: relax.Expr
    shares: relax.Expr
    order: relax.Expr
    starts: relax.Expr


@converter("MoE", domain=MICROSOFT)
def moe(
    ctx: Context,
    data: relax.Expr,
    router: relax.Expr,
    first: relax.Expr,
    first_bias: relax.Expr | None,
    second: relax.Expr,
    second_bias: relax.Expr | None = None,
    *third: relax.Expr | None,
) -> relax.Expr:
    """Experts of floats. Shares are those of the softmax over all experts."""
    _require(ctx, data, third)
    arrays = [ctx.array(first), ctx.array(second)]
    weights = []
    for number, array in enumerate(arrays):
        if array is None:
            raise NotImplementedError("the weights of the experts must be constant")
        ordered = _apart(ctx, array) if number == 0 else array
        kept = ordered if ordered.dtype == np.float16 else ordered.astype(np.float32)
        weights.append(_Weight(array.shape[1], array.shape[2], _in_tiles(kept)))
    experts = len(arrays[0]) if arrays[0] is not None else 0
    shares = op.nn.softmax(as_dtype(router, "float32"), -1)
    best, chosen = _best(ctx, shares, experts)
    if ctx.attrs.get("normalize_routing_weights", 0) == 1:
        best = op.divide(best, op.sum(best, -1, keepdims=True))
    routes = _routes(ctx, experts, chosen, op.where(op.greater(best, scalar(0, "float32")), best, scalar(0, "float32")))
    return _mixed(ctx, data, routes, (weights[0], weights[1]), (first_bias, second_bias))


@converter("QMoE", domain=MICROSOFT)
def qmoe(
    ctx: Context,
    data: relax.Expr,
    router: relax.Expr,
    first: relax.Expr,
    first_scales: relax.Expr | None,
    first_bias: relax.Expr | None,
    second: relax.Expr,
    second_scales: relax.Expr | None,
    second_bias: relax.Expr | None = None,
    third: relax.Expr | None = None,
    third_scales: relax.Expr | None = None,
    third_bias: relax.Expr | None = None,
    first_zeros: relax.Expr | None = None,
    second_zeros: relax.Expr | None = None,
    third_zeros: relax.Expr | None = None,
    mix: relax.Expr | None = None,
    *more: relax.Expr | None,
) -> relax.Expr:
    """Experts of codes. Shares are those of the softmax over the chosen experts, or numbers of another input."""
    _require(ctx, data, (third, third_scales, third_bias, third_zeros))
    if ctx.attrs.get("weights_prepacked", -1) == 1:
        raise NotImplementedError("weights in the layout of another device are not supported")
    if any(value is not None for value in more) or ctx.text("quant_type", "int") != "int":
        raise NotImplementedError("weights other than integers are not supported")
    weights = (
        _coded(ctx, "fc1", first, first_scales, first_zeros),
        _coded(ctx, "fc2", second, second_scales, second_zeros),
    )
    experts = dims_of(first)[0]
    best, chosen = _best(ctx, as_dtype(router, "float32"), experts)
    zero = scalar(0, "float32")
    if mix is None:
        shares = op.nn.softmax(best, -1)
    else:
        shares = ctx.bb.normalize(op.gather_elements(as_dtype(mix, "float32"), chosen, 1))
    if mix is not None and ctx.attrs.get("normalize_routing_weights", 0) == 1:
        total = op.sum(shares, -1, keepdims=True)
        shares = op.where(op.equal(total, zero), zero, op.multiply(shares, op.divide(scalar(1, "float32"), total)))
    shares = op.where(op.greater(shares, scalar(_LEAST_SHARE, "float32")), shares, zero)
    return _mixed(ctx, data, _routes(ctx, experts, chosen, shares), weights, (first_bias, second_bias))


def _require(ctx: Context, data: relax.Expr, third: tuple[relax.Expr | None, ...]) -> None:
    if ctx.backend != "cpu":
        raise NotImplementedError("only the CPU has a kernel that reads the weights of the chosen experts alone")
    if any(value is not None for value in third):
        raise NotImplementedError("a third layer of experts (fc3) is not supported")
    if ctx.attrs.get("use_sparse_mixer", 0):
        raise NotImplementedError("the sparse mixer is not supported")
    if not has_positive_sizes(data):
        raise NotImplementedError("data without rows is not supported")
    fusion = ctx.attrs.get("swiglu_fusion", 0)
    if fusion != 1 and ctx.text("activation_type", "relu") == "swiglu":
        raise NotImplementedError(f"swiglu_fusion={fusion} is not supported")


def _apart(ctx: Context, rows: Array) -> Array:
    """The rows of the first layer [experts, rows, …] with gates before what they multiply, if these alternate."""
    if ctx.text("activation_type", "relu") != "swiglu":
        return rows
    return np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1)


def _in_tiles(weight: Array) -> Array:
    """Weights [experts, columns, terms] as [experts · tiles, terms, TILE]; zeros follow the last column."""
    _, columns, terms = weight.shape
    padded = np.pad(weight, ((0, 0), (0, -columns % TILE), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, TILE, terms).transpose(0, 2, 1))


def _coded(ctx: Context, layer: str, codes: relax.Expr, scales: relax.Expr | None, zeros: relax.Expr | None) -> _Weight:
    """The weight of one layer, "fc1" or "fc2"."""
    bits = ctx.attrs.get(f"{layer}_expert_weight_bits", ctx.attrs.get("expert_weight_bits", 4))
    if bits != ctx.attrs.get("expert_weight_bits", 4):
        raise NotImplementedError("layers of different bits are not supported")
    packed, factors = ctx.array(codes), None if scales is None else ctx.array(scales)
    points = None if zeros is None else ctx.array(zeros)
    if packed is None or factors is None or (zeros is not None and points is None):
        raise NotImplementedError("the weights, scales and zero points of the experts must be constant")
    block = ctx.attrs.get("block_size", 0)
    if bits not in (2, 4, BYTE) or packed.dtype != np.uint8:
        raise NotImplementedError(f"experts with weights of {bits} bits are not supported")
    experts, columns, width = packed.shape
    terms = width * 8 // bits
    if block and terms % block:
        raise NotImplementedError("the last block of a row is not whole")
    blocks, unit = terms // block if block else 1, TERMS * 8 // bits
    if points is not None:
        if (points.ndim == 3) != bool(block) or (block and blocks == 1):
            raise NotImplementedError("zero points of one block in each row are not supported")
        points = unpacked(points, bits)
        points = points[..., :blocks] if block else points[:, :columns, None]
    rounded = ctx.record.packed_rounds is not None and ctx.record.packed_rounds(ctx.node)
    if layer == "fc1":
        packed, factors = _apart(ctx, packed), _apart(ctx, factors)
        points = None if points is None else _apart(ctx, points)
    more = -columns % TILE
    # A row is one block if there are no others: it is as long as the kernel's words, and vectors of numbers.
    whole = block or -(-terms // (2 * unit)) * 2 * unit
    packed = np.pad(packed, ((0, 0), (0, more), (0, (blocks * whole - terms) * bits // 8)))
    factors = np.pad(factors.reshape(experts, columns, blocks), ((0, 0), (0, more), (0, 0)))
    middle: Array | int = 1 << (bits - 1)
    if points is not None:
        middle = np.pad(points, ((0, 0), (0, more), (0, 0))).reshape(-1, blocks)
    every = experts * (columns + more)
    stored = PackedCodes(packed.reshape(every, -1), bits, (every, blocks, whole))
    scale = factors.reshape(every, blocks)
    scale = scale if scale.dtype in (np.float32, np.float16) else scale.astype(np.float32)
    return _Weight(columns, terms, BlockedWeight(bits, terms, stored, scale, middle), rounded)


def _best(ctx: Context, data: relax.Expr, experts: int) -> tuple[relax.Expr, relax.Expr]:
    """The `k` largest numbers of each row and their places; of equal ones the last, as in ONNX Runtime."""
    k = ctx.attrs.get("k", 1)
    if not 0 < k <= experts:
        raise NotImplementedError(f"k={k} of {experts} experts")
    turned = ctx.bb.normalize(op.flip(data, 1))
    made = (dims_of(turned)[0], k)
    found = requested(
        ctx, "top_k", [turned], [(made, "float32"), (made, "int64")], axis=1, largest=1, few="too few experts"
    )
    best, places = (ctx.bb.emit(relax.TupleGetItem(found, n)) for n in range(2))
    return best, ctx.bb.emit(op.subtract(scalar(experts - 1, "int64"), places))


def _routes(ctx: Context, experts: int, chosen: relax.Expr, shares: relax.Expr) -> _Routes:
    count = math.prod(dims_of(chosen))
    flat = ctx.bb.emit(op.reshape(op.astype(chosen, "int32"), (count,)))
    results = [((count,), "int32"), ((count,), "int64")]
    found = requested(ctx, "top_k", [flat], results, axis=0, largest=0, few="routes are missing")
    order = ctx.bb.emit(relax.TupleGetItem(found, 1))
    before = op.less(op.reshape(flat, (1, count)), constant(np.arange(experts + 1, dtype=np.int32)[:, None]))
    starts = op.astype(op.sum(op.astype(before, "int32"), 1), "int64")
    return _Routes(experts, chosen, ctx.bb.emit(shares), order, ctx.bb.emit(starts))


def _mixed(
    ctx: Context,
    data: relax.Expr,
    routes: _Routes,
    weights: tuple[_Weight, _Weight],
    biases: tuple[relax.Expr | None, relax.Expr | None],
) -> relax.Expr:
    """The results of the experts of each row, times their shares."""
    rows, k = dims_of(routes.chosen)
    terms = dims_of(data)[-1]
    flat = ctx.bb.normalize(op.reshape(data, (rows, terms)) if rank_of(data) > 2 else data)
    bias = biases[0]
    if bias is not None:
        known = ctx.array(bias)
        if known is None:
            raise NotImplementedError("the biases of the experts must be constant")
        bias = constant(_apart(ctx, known.astype(np.float32)))
    hidden = _with_bias(ctx, weights[0].product(ctx, flat, routes, k), bias, routes)
    active = ctx.bb.emit(_activated(ctx, hidden))
    made = _with_bias(ctx, weights[1].product(ctx, active, routes, 1), biases[1], routes)
    share = op.reshape(routes.shares, (rows, k, 1))
    zero = scalar(0, "float32")
    shared = op.where(op.greater(share, zero), op.multiply(share, made), zero)
    total = op.sum(shared, 1)
    return as_dtype(ctx.bb.normalize(op.reshape(total, data.ty.shape)), dtype_of(data))


def _with_bias(ctx: Context, value: relax.Expr, bias: relax.Expr | None, routes: _Routes) -> relax.Expr:
    if bias is None:
        return value
    return ctx.bb.normalize(op.add(value, op.take(as_dtype(bias, "float32"), routes.chosen, 0, mode="clip")))


def _activated(ctx: Context, value: relax.Expr) -> relax.Expr:
    alpha, beta = ctx.attrs.get("activation_alpha", 1.0), ctx.attrs.get("activation_beta", 0.0)
    limit = ctx.attrs.get("swiglu_limit", None)
    kind, half = ctx.text("activation_type", "relu"), dims_of(value)[-1] // 2
    if kind == "swiglu":
        gate, linear = (ctx.bb.normalize(op.strided_slice(value, [2], [n * half], [(n + 1) * half])) for n in range(2))
        if limit is not None and np.isfinite(limit):
            most, least = scalar(limit, "float32"), scalar(-limit, "float32")
            gate, linear = op.minimum(gate, most), op.maximum(op.minimum(linear, most), least)
        turned = op.multiply(gate, op.sigmoid(op.multiply(scalar(alpha, "float32"), gate)))
        return op.multiply(turned, op.add(linear, scalar(beta, "float32")))
    simple = {"relu": op.nn.relu, "gelu": op.nn.gelu_tanh, "silu": op.nn.silu, "identity": lambda given: given}
    if kind not in simple:
        raise NotImplementedError(f"the activation {kind} is not supported")
    return simple[kind](value)
