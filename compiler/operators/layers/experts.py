"""Mixtures of experts: a router chooses the weights of some experts for each row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from heterocc.compiler.operators.layers.products import ROUNDED
from heterocc.compiler.operators.record import MICROSOFT, Dims, Operator, attribute, same_shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number

_BYTE = 8

_CHOOSES = "it chooses experts, and a rounded number can change the choice"


def _experts(needs: Needs, second: int) -> None:
    """The rows of the router are those of the data, and its columns the experts, at least as many as are chosen."""
    data, weight = needs.shape(0), needs.shape(2, 3)
    if len(data) not in (2, 3) or not weight or needs.size(second, 1) is None:
        return
    rows: Size | None = number(1)
    for size in data[:-1]:
        rows = None if rows is None or size is None else rows * size
    needs.shaped(1, [rows, weight[0]])
    needs.equal(0, -1, needs.size(second, 1))
    needs.relate(needs.size(1, 1), "at_least", number(needs.given.attribute("k", 1)), "the number of experts")


def moe(needs: Needs) -> None:
    """MoE."""
    _experts(needs, 4)


def qmoe(needs: Needs) -> None:
    """QMoE."""
    _experts(needs, 5)
    if needs.given.has(14):
        needs.shaped(14, needs.shape(1))


def _gates(node: onnx.NodeProto) -> str:
    """Gates of layers without any: MoE ignores that they are said to alternate, and QMoE reads twice the weights."""
    plain = (b"relu", b"gelu", b"silu", b"identity")
    return "swiglu_fusion" if attribute(node, "activation_type", b"relu") in plain else ""


def _flops(node: onnx.NodeProto, weights: Sequence[Dims], output: Dims, bits: int = _BYTE) -> float:
    """2 x rows x experts of each row x the elements of an expert's weights, of which a byte has 8 / `bits`."""
    rows, k = prod(output[:-1]), int(attribute(node, "k", 1))
    return sum(2.0 * rows * k * prod(weight[1:]) * _BYTE / bits for weight in weights)


def _moe_flops(node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    return _flops(node, (inputs[2], inputs[4]), output)


def _qmoe_flops(node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    return _flops(node, (inputs[2], inputs[5]), output, int(attribute(node, "expert_weight_bits", 4)))


def _rounds(node: onnx.NodeProto) -> bool:
    """Whether the rows of the products are rounded: with 8 bits in blocks always, with 4 if it is allowed."""
    bits, level = attribute(node, "expert_weight_bits", 4), attribute(node, "accuracy_level", 0)
    return bool(attribute(node, "block_size", 0)) and (bits == _BYTE or (bits == _BYTE // 2 and level == ROUNDED))


OPERATORS = (
    Operator("MoE", MICROSOFT, shapes=same_shape, needs=moe, flops=_moe_flops, float32_inputs=_CHOOSES),
    Operator(
        "QMoE",
        MICROSOFT,
        shapes=same_shape,
        needs=qmoe,
        misleading=_gates,
        flops=_qmoe_flops,
        quantised="rounds",
        packed_rounds=_rounds,
        unread="accuracy_level fc3_expert_weight_bits normalize_routing_weights",  # shares of the chosen have the sum 1
        float32_inputs=_CHOOSES,
    ),
)
