"""LSTM, GRU and RNN on the CPU, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.compiler.lower.lowered import assert_same, model, run_cpu, run_ort

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize(
    "kind, hidden, batch, attributes",
    [
        ("LSTM", 8, 3, {}),
        ("LSTM", 80, 9, {"direction": "reverse"}),
        ("LSTM", 6, 2, {"direction": "bidirectional"}),
        ("GRU", 12, 2, {}),
        ("GRU", 16, 11, {"linear_before_reset": 1, "direction": "bidirectional"}),
        ("RNN", 10, 1, {"activations": ["Relu"]}),
    ],
)
def test_recurrent_layers_agree(kind: str, hidden: int, batch: int, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    both = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[kind] * hidden
    shapes = {"w": (both, gates, 7), "r": (both, gates, hidden), "b": (both, 2 * gates), "h": (both, batch, hidden)}
    shapes |= {"c": (both, batch, hidden)} if kind == "LSTM" else {}
    constants = {name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.standard_normal((3, batch, 7)).astype(np.float32)
    given, written = ["x", "w", "r", "b", "", "h"], ["y", "last"]
    if kind == "LSTM":
        given, written = [*given, "c"], [*written, "cell"]
    made = model(
        [helper.make_node(kind, given, written, hidden_size=hidden, **attributes)], {"x": x}, written, constants
    )
    assert_same(run_cpu(made, {"x": x}), run_ort(made, {"x": x}))


def test_a_layer_whose_steps_are_divided_among_threads_agrees() -> None:
    rng = np.random.default_rng(1)
    shapes = {"w": (1, 1024, 4), "r": (1, 1024, 256)}
    constants = {name: rng.uniform(-0.1, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.standard_normal((4, 3, 4)).astype(np.float32)
    made = model([helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=256)], {"x": x}, ["y"], constants)
    assert_same(run_cpu(made, {"x": x}), run_ort(made, {"x": x}))


def test_gates_that_read_the_cell_agree() -> None:
    rng = np.random.default_rng(2)
    shapes = {"w": (2, 32, 4), "r": (2, 32, 8), "b": (2, 64), "p": (2, 24)}
    constants = {name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.standard_normal((4, 3, 4)).astype(np.float32)
    given = ["x", "w", "r", "b", "", "", "", "p"]
    node = helper.make_node("LSTM", given, ["y", "last", "cell"], hidden_size=8, direction="bidirectional")
    made = model([node], {"x": x}, ["y", "last", "cell"], constants)
    assert_same(run_cpu(made, {"x": x}), run_ort(made, {"x": x}))
