"""Recurrent layers, and operators without a family."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.differential.operator_cases.values import IMAGE, ints, weight
from tests.differential.operators import Array, Case, Constant, case, constant, draw


def recurrent(
    op: str,
    gates: int,
    direction: str = "forward",
    bias: bool = True,
    h0: bool = True,
    outs: int | None = None,
    **attrs: Any,
) -> Case:
    """Six steps, a batch of two, three features, five hidden values."""
    count, hidden = 2 if direction == "bidirectional" else 1, 5
    inputs: list[Array | Constant | None] = [
        draw(6, 2, 3),
        weight(count, gates * hidden, 3),
        weight(count, gates * hidden, hidden),
        weight(count, 2 * gates * hidden) if bias else None,
        None,
        draw(count, 2, hidden, seed=1) if h0 else None,
    ]
    if op == "LSTM":
        inputs.append(draw(count, 2, hidden, seed=2) if h0 else None)
    while inputs[-1] is None:
        inputs.pop()
    outputs = outs or (3 if op == "LSTM" else 2)
    return case(op, *inputs, outputs=outputs, hidden_size=hidden, direction=direction, **attrs)


CASES: dict[str, list[Case]] = {}
CASES["rnn"] = [
    recurrent("LSTM", 4),
    recurrent("LSTM", 4, "bidirectional"),
    recurrent("LSTM", 4, "reverse", bias=False, h0=False),
    recurrent("GRU", 3),
    recurrent("GRU", 3, "bidirectional", linear_before_reset=1),
    recurrent("GRU", 3, "reverse", h0=False, bias=False),
    recurrent("RNN", 1),
    recurrent("RNN", 1, "bidirectional", activations=["Relu", "Tanh"]),
    recurrent("LSTM", 4, outs=1),
]
CASES["misc"] = [
    case(
        "RoiAlign",
        IMAGE,
        constant([[0, 0, 4, 4], [1, 1, 5, 5]], np.float32),
        constant([0, 0], np.int64),
        output_height=2,
        output_width=2,
        spatial_scale=1.0,
        sampling_ratio=2,
    ),
    case("MaxRoiPool", IMAGE, constant([[0, 0, 0, 4, 4]], np.float32), pooled_shape=[2, 2]),
    case("GridSample", IMAGE, draw(1, 3, 3, 2, low=-1, high=1), opset=17),
    case("HannWindow", constant(10, np.int64)),
    case(
        "MelWeightMatrix",
        constant(8, np.int64),
        constant(16, np.int64),
        constant(8000, np.int64),
        constant(0.0, np.float32),
        constant(4000.0, np.float32),
    ),
    case("BitShift", ints(4, d=np.uint8, lo=0), constant(2, np.uint8), direction="LEFT"),
    case("MaxUnpool", draw(1, 1, 2, 2), constant(np.array([[[[0, 2], [9, 11]]]])), kernel_shape=[2, 2], strides=[2, 2]),
]
