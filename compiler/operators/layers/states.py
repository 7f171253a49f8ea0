"""Layers with a state of fixed size in place of past keys, and their gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import onnx

from heterocc.compiler.operators.record import MICROSOFT, STATE, Dims, Interval, Known, Operator, same_shape
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number


def _kept(given: Given) -> Size | None:
    """The steps that a convolution keeps: those that its first tap is before its last one."""
    weight = given.shape(1)
    taps = None if weight is None else weight[-1]
    return None if taps is None else (taps - number(1)) * number(given.attribute("dilation", 1))


def _conv_state(given: Given, data: Sequence[Size | None]) -> tuple[Size | None, ...]:
    kept = _kept(given)
    return (data[0], kept, *data[2:]) if given.attribute("channels_last", 0) else (*data[:2], kept)


def conv_shapes(given: Given) -> list[Shape] | None:
    """CausalConvWithState: the result and the state."""
    data = given.shape()
    if data is None or given.attribute("state_window", 0) or given.attribute("ndim", 1) != 1:
        return None
    return [data, _conv_state(given, data)]


def conv(needs: Needs) -> None:
    """CausalConvWithState: a weight and a bias for each channel, and the state of as many items."""
    data = needs.shape(0)
    if len(data) < 3 or needs.given.attribute("ndim", 1) != 1:
        return
    channels: Size | None = data[1]
    if needs.given.attribute("channels_last", 0):
        channels = number(1)
        for size in data[2:]:
            channels = None if channels is None or size is None else channels * size
    needs.shaped(1, [channels, 1, None])
    needs.shaped(2, [channels])
    if not needs.given.attribute("state_window", 0):
        needs.shaped(3, _conv_state(needs.given, data))


def _heads(given: Given) -> tuple[int, int]:
    return int(given.attribute("q_num_heads")), int(given.attribute("kv_num_heads"))


def _head(shape: Sequence[Size | None] | None, heads: int) -> Size | None:
    return None if not shape or shape[-1] is None or heads <= 0 else quotient(shape[-1], number(heads))


def linear_shapes(given: Given) -> list[Shape] | None:
    """LinearAttention: the result and the state."""
    query, value = given.shape(0), given.shape(2)
    if query is None or value is None or given.attribute("state_window", 0):
        return None
    heads, own = _heads(given)
    size, columns = _head(query, heads), _head(value, own)
    wide = None if columns is None else columns * number(max(heads, own))
    return [(*query[:2], wide), (query[0], number(own), size, columns)]


def linear(needs: Needs) -> None:
    """LinearAttention: queries, keys, values and gates of the same steps, and a state for each head of values."""
    query = needs.shape(0, 3)
    if not query:
        return
    heads, own = _heads(needs.given)
    size, columns = _head(query, heads), _head(needs.shape(2), own)
    needs.multiple(0, 2, heads)
    needs.multiple(2, 2, own)
    if size is not None:
        needs.multiple(1, 2, size)
    for place in (1, 2, 4, 5):  # of gates ONNX Runtime compares the last dimension only
        needs.shaped(place, [*query[:2], None])
    if not needs.given.attribute("state_window", 0):
        needs.shaped(3, [query[0], own, size, columns])


def _linear_flops(node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    """Six operations for each element of each head's state and each step."""
    heads = next((a.i for a in node.attribute if a.name == "q_num_heads"), 1)
    return 6.0 * prod(output) * inputs[0][-1] / max(heads, 1)


def _unit(node: onnx.NodeProto, known: Known) -> Interval | None:
    """Keys that have at most length 1: with longer ones a state grows without limit."""
    shape = known.shape(node.input[0])
    heads = next((a.i for a in node.attribute if a.name == "q_num_heads"), 1)
    width = None if shape is None else shape[-1]
    most = 0.1 if not width or heads < 1 else math.sqrt(heads / width)
    return -most, most


def gates(needs: Needs) -> None:
    """LinearAttentionGate: a bias and a scale for each head."""
    data = needs.shape(0)
    if not data:
        return
    needs.shaped(1, [data[-1]])
    needs.shaped(2, [data[-1]])
    needs.shaped(3, data)


def gated_norm(needs: Needs) -> None:
    """GatedRMSNorm: groups of as many numbers as the scale has, and a gate for each number."""
    needs.multiple(0, -1, needs.size(1, 0))
    needs.shaped(2, needs.shape(0))


def gated_sum(needs: Needs) -> None:
    """GatedAdd: two tensors of one shape, and a gate for each row."""
    needs.shaped(1, needs.shape(0))
    if not needs.given.has(3):
        needs.shaped(2, [*needs.shape(0)[:-1], 1])


def _gate_shapes(given: Given) -> list[Shape] | None:
    return [given.shape(), given.shape()]


OPERATORS = (
    Operator("CausalConvWithState", expanded=True),
    Operator("CausalConvWithState", MICROSOFT, shapes=conv_shapes, needs=conv, flops=8.0),
    Operator("LinearAttention", expanded=True),
    Operator(
        "LinearAttention",
        MICROSOFT,
        shapes=linear_shapes,
        needs=linear,
        flops=_linear_flops,
        unread="chunk_size",
        unchecked="memory",
        intervals={1: _unit, 4: (-2.0, 0.0), 5: (0.0, 1.0)},
        float32_inputs=STATE,
    ),
    Operator("LinearAttentionGate", MICROSOFT, shapes=_gate_shapes, needs=gates, flops=8.0, float32_inputs=STATE),
    Operator("GatedAdd", MICROSOFT, shapes=same_shape, needs=gated_sum),
    Operator("GatedRMSNorm", MICROSOFT, shapes=same_shape, needs=gated_norm, flops=8.0),
)
