"""Recurrent layers: weights, states and lengths of one batch, number of features and hidden size."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from heterocc.compiler.operators.record import FIRST_FILLED, MICROSOFT, STATE, ByteProduct, Dims, Operator
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number

LSTM, GRU, RNN = "LSTM", "GRU", "RNN"
GATES = {LSTM: 4, GRU: 3, RNN: 1}
STATES = {LSTM: 2, GRU: 1, RNN: 1}
_QUANTISED = f"DynamicQuantize{LSTM}"


def _kind(node: onnx.NodeProto) -> str:
    return LSTM if node.op_type == _QUANTISED else str(node.op_type)


def layer(needs: Needs) -> None:
    """LSTM, GRU and RNN."""
    hidden = _common(needs)
    gated = _gated(needs, hidden)
    data = needs.shape(0, 3)
    directions = _directions(needs)
    needs.shaped(1, [directions, gated, data[2] if data else None])
    needs.shaped(2, [directions, gated, hidden])


def quantised_layer(needs: Needs) -> None:
    """DynamicQuantizeLSTM, whose weights are turned."""
    hidden = _common(needs)
    gated = _gated(needs, hidden)
    data = needs.shape(0, 3)
    directions = _directions(needs)
    needs.shaped(1, [directions, data[2] if data else None, gated])
    needs.shaped(2, [directions, hidden, gated])
    for place in range(8, 12):  # a scale and a zero point for each direction, or for each column, too
        needs.shaped(place, [directions])
        needs.shaped(place, [directions, gated])


def _directions(needs: Needs) -> Size:
    return number(2 if needs.given.attribute("direction", b"forward") == b"bidirectional" else 1)


def _gated(needs: Needs, hidden: Size | None) -> Size | None:
    return None if hidden is None else hidden * number(GATES[_kind(needs.given.node)])


def _common(needs: Needs) -> Size | None:
    """The requirements of bias, lengths, states and peepholes; returns the hidden size."""
    given, data = needs.given, needs.shape(0, 3)
    known = given.attribute("hidden_size")
    last = -2 if given.node.op_type == _QUANTISED else -1
    hidden = number(int(known)) if known else needs.size(2, last)
    directions, by_batch = _directions(needs), bool(given.attribute("layout", 0))
    batch = data[0 if by_batch else 1] if data else None
    gated = _gated(needs, hidden)
    needs.shaped(3, [directions, None if gated is None else gated * number(2)])
    needs.shaped(4, [batch])
    states = STATES[_kind(given.node)]
    for place in range(5, 5 + states):
        needs.shaped(place, [batch, directions, hidden] if by_batch else [directions, batch, hidden])
    if states == 2:
        needs.shaped(7, [directions, None if hidden is None else hidden * number(3)])
    return hidden


def quantised_shapes(given: Given) -> list[Shape] | None:
    """The hidden state of each step; the last hidden state, and the last cell state."""
    shape = given.shape()
    if shape is None or len(shape) != 3:
        return None
    directions = number(2 if given.attribute("direction", b"forward") == b"bidirectional" else 1)
    last = directions, shape[1], number(given.attribute("hidden_size"))
    return [(shape[0], *last), last, last]


def _flops(node: onnx.NodeProto, inputs: Sequence[Dims], _output: Dims) -> float:
    steps, batch, features = inputs[0]
    directions, _, hidden = inputs[2]
    return 2.0 * steps * batch * directions * GATES[_kind(node)] * hidden * (features + hidden)


OPERATORS = (
    *(
        Operator(
            name,
            needs=layer,
            filled=() if name == "RNN" else FIRST_FILLED,
            factors=range(3),
            lengths=4,
            saturates=True,
            float32_results=STATE,
            flops=_flops,
            unread="hidden_size",
        )
        for name in GATES
    ),
    Operator(
        _QUANTISED,
        MICROSOFT,
        shapes=quantised_shapes,
        needs=quantised_layer,
        filled=FIRST_FILLED,
        byte_product=ByteProduct({1: 9, 2: 11}, data=None),
        quantised="rounds",
        saturates=True,
        float32_results=STATE,
        unread="hidden_size",
    ),
)
