"""Quantised operators: scales and zero points for a tensor, an axis or blocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx

from heterocc.compiler.operators.arrays.cutting import concatenated
from heterocc.compiler.operators.elements.arithmetic import broadcast_shapes, stacked
from heterocc.compiler.operators.layers.products import gemm, matmul_flops, product, product_shapes
from heterocc.compiler.operators.record import (
    AFTER_FIRST,
    FIRST_FILLED,
    INNER,
    LAST,
    LAST_BUT_ONE,
    MICROSOFT,
    SCALES,
    ByteProduct,
    Interval,
    Known,
    Operator,
    Part,
    nothing,
    same_shape,
)
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number


def along(needs: Needs, places: tuple[int, ...], size: Size | None) -> None:
    """Scales and zero points of one number, or of one for each element of an axis."""
    for place in places:
        if len(needs.shape(place)) == 1:
            needs.broadcast(place, 0, size)
            # An axis of one element has one of them, which broadcasting does not say.
            needs.relate(
                size, "multiple", needs.size(place, 0), f"the axis that has the numbers of {needs.name(place)}"
            )


def linear(needs: Needs) -> None:
    """QuantizeLinear and DequantizeLinear."""
    data, scale = needs.shape(0), needs.shape(1)
    axis, block = needs.given.attribute("axis", 1), needs.given.attribute("block_size", 0)
    if block and len(scale) == len(data):
        for place, size in enumerate(data):
            if place == axis % len(data):
                size = None if size is None else quotient(size + number(block - 1), number(block))
            needs.equal(1, place, size)
    elif -len(data) <= axis < len(data):
        along(needs, (1,), data[axis])
    needs.shaped(2, scale)


def multiplied(needs: Needs) -> None:
    """QLinearMatMul."""
    product(needs, 0, 3)
    along(needs, (1, 2), needs.size(0, -2))
    along(needs, (4, 5), needs.size(3, -1))
    along(needs, (6, 7), needs.size(0, -2))


def multiplied_integers(needs: Needs) -> None:
    """MatMulInteger."""
    product(needs)
    along(needs, (2,), needs.size(0, -2))
    along(needs, (3,), needs.size(1, -1))


def quantised_unary(needs: Needs) -> None:
    """One tensor with a scale and a zero point, and those of the result."""
    needs.single(1, 2, 3, 4)


def quantised_pair(needs: Needs) -> None:
    """QLinearAdd and QLinearMul: two tensors that are broadcast with each other."""
    stacked(needs, [(place, needs.shape(place), 0) for place in (0, 3)])
    needs.single(1, 2, 4, 5, 6, 7)


def quantised_choice(needs: Needs) -> None:
    """QLinearWhere: three tensors that are broadcast with each other."""
    stacked(needs, [(place, needs.shape(place), 0) for place in (0, 1, 4)])
    needs.single(2, 3, 5, 6, 7, 8)


def quantised_concat(needs: Needs) -> None:
    """QLinearConcat: all other axes are equal."""
    first = needs.shape(2)
    axis = needs.given.attribute("axis") % max(len(first), 1)
    for place in range(5, len(needs.given.shapes), 3):
        if len(needs.shape(place)) == len(first):
            needs.shaped(place, [None if n == axis else size for n, size in enumerate(first)])
    needs.single(*(place for place in range(len(needs.given.shapes)) if place < 2 or place % 3 != 2))


def quantised_gemm(needs: Needs) -> None:
    """QGemm."""
    gemm(needs, second=3, bias=6)
    needs.single(1, 2, 7, 8)
    along(needs, (4, 5), needs.size(3, 0 if needs.given.attribute("transB", 0) else 1))


def ranged_product(needs: Needs) -> None:
    """DynamicQuantizeMatMul."""
    product(needs)
    along(needs, (2, 3), needs.size(1, -1))
    needs.shaped(4, [needs.size(1, -1)])


def scaled_product(needs: Needs) -> None:
    """MatMulIntegerToFloat."""
    product(needs)
    needs.single(2, 4)
    along(needs, (3, 5), needs.size(1, -1))
    needs.shaped(6, [needs.size(1, -1)])


def quantised_concat_shapes(given: Given) -> list[Shape] | None:
    """The inputs are the result's scale and zero point, then a tensor, its scale and its zero point in turns."""
    found = concatenated(given.shapes[2::3], given.attribute("axis"))
    return None if found is None else [found]


_LINEAR = "axis output_dtype"
_STEP = (0.01, 0.1)


def _gathered_shapes(given: Given) -> list[Shape] | None:
    """GatherBlockQuantized: rows of a table, whose last axis has several codes in a byte of uint8."""
    table, places = given.shape(), given.shape(1)
    stored = given.constants[0] if given.constants else None
    if table is None or places is None or stored is None:
        return None
    codes = list(table)
    if stored.dtype == np.uint8 and codes[-1] is not None:
        codes[-1] = codes[-1] * number(8 // given.attribute("bits", 4))
    axis = given.attribute("gather_axis", 0) % len(table)
    return [(*codes[:axis], *places, *codes[axis + 1 :])]


def _steps(node: onnx.NodeProto, known: Known) -> Interval | None:
    """The range of an 8-bit quantisation, or None if standard normal values use it well."""
    scale = known.scalar(node.input[1])
    zero = known.constant(node.input[2]) if len(node.input) > 2 else np.zeros(1, np.uint8)
    if scale is None or scale <= 0 or zero is None or zero.size != 1 or zero.dtype not in (np.uint8, np.int8):
        return None
    ends, middle = np.iinfo(zero.dtype), int(zero.ravel()[0])
    low, high = scale * (int(ends.min) - middle), scale * (int(ends.max) - middle)
    return (low, high) if high - low < 2 or high - low > 40 else None


def _linear(name: str, **facts: Any) -> Iterator[Operator]:
    """QuantizeLinear or DequantizeLinear of both domains."""
    for domain in ("", MICROSOFT):
        own = {"intervals": {1: _STEP}, "unread": _LINEAR} | facts | ({"intervals": {1: _STEP}} if domain else {})
        yield Operator(name, domain, shapes=same_shape if domain else None, needs=linear, settings=True, **own)


def _rounding(name: str, domain: str = MICROSOFT, **facts: Any) -> Operator:
    return Operator(name, domain, quantised="rounds", **facts)


_SCALED: dict[str, Any] = {"float32_inputs": SCALES}

OPERATORS = (
    *_linear(
        "QuantizeLinear", choice=0, quantised="rounds", intervals={0: _steps, 1: _STEP}, unread=f"{_LINEAR} saturate"
    ),
    *_linear("DequantizeLinear", quantised="computes", dequantises=True, **_SCALED),
    Operator(
        "GatherBlockQuantized",
        MICROSOFT,
        shapes=_gathered_shapes,
        needs=nothing,
        indices=1,
        quantised="computes",
        **_SCALED,
    ),
    _rounding("DynamicQuantizeLinear", "", needs=nothing, choice=0),
    Operator(
        "MatMulInteger",
        needs=multiplied_integers,
        filled=(INNER,),
        quantised="computes",
        byte_product=ByteProduct({0: 2, 1: 3}),
        flops=matmul_flops,
    ),
    _rounding(
        "QLinearMatMul",
        "",
        needs=multiplied,
        filled=((Part(0, LAST), Part(3, LAST_BUT_ONE)),),
        byte_product=ByteProduct({0: 2, 3: 5}, result=7),
        settings=True,
        flops=matmul_flops,
        **_SCALED,
    ),
    _rounding(
        "DynamicQuantizeMatMul",
        shapes=product_shapes,
        needs=ranged_product,
        filled=(INNER,),
        choice=0,
        byte_product=ByteProduct({1: 3}, data=None),
    ),
    _rounding(
        "MatMulIntegerToFloat",
        shapes=product_shapes,
        needs=scaled_product,
        filled=(INNER,),
        byte_product=ByteProduct({0: 4, 1: 5}),
        **_SCALED,
    ),
    _rounding(
        "QGemm",
        shapes=partial(product_shapes, second=3),
        needs=quantised_gemm,
        filled=FIRST_FILLED,
        byte_product=ByteProduct({0: 2, 3: 5}, result=8),
        **_SCALED,
    ),
    _rounding("QAttention", byte_product=ByteProduct({0: 6, 1: 7}), filled=((Part(0, slice(1)),),), **_SCALED),
    *(
        _rounding(name, shapes=broadcast_shapes(0, 3), needs=quantised_pair, broadcasts=(0, 3), **_SCALED)
        for name in ("QLinearAdd", "QLinearMul")
    ),
    _rounding("QLinearWhere", shapes=broadcast_shapes(0, 1, 4), needs=quantised_choice, broadcasts=(0, 1, 4)),
    _rounding("QLinearConcat", shapes=quantised_concat_shapes, needs=quantised_concat, **_SCALED),
    _rounding("QLinearConv", filled=((Part(3, AFTER_FIRST),), (Part(4),), (Part(5),))),
    _rounding("QLinearReduceMean"),
    *(
        _rounding(name, shapes=same_shape, needs=quantised_unary)
        for name in ("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
    ),
)
