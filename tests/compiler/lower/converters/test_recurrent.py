"""LSTM, GRU and RNN on the CPU, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import helper
from tvm import tirx

from heterocc.compiler.lower.converters.recurrent.layer import Layer, activations
from heterocc.compiler.lower.converters.recurrent.recurrent_operators import recurrent_request
from heterocc.compiler.lower.cpu.generate.cores import AVX512
from heterocc.compiler.lower.cpu.generate.emit import UNROLL
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.requested.write import write_requested
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.straight import bindings_of, vars_of
from tests.compiler.lower.cpu.test_symbolic import compare
from tests.compiler.lower.lowered import assert_same, job, model, run_cpu, run_ort
from tests.symbolic_models import dynamic_model

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize(
    "kind, hidden, batch, attributes, also",
    [
        ("LSTM", 8, 3, {"input_forget": 1}, ""),
        ("LSTM", 80, 9, {"direction": "reverse", "clip": 0.3}, "lengths"),
        ("LSTM", 6, 2, {"direction": "bidirectional"}, "peephole"),
        ("LSTM", 83, 1, {"direction": "bidirectional"}, "peephole"),
        ("LSTM", 37, 6, {}, "lengths"),
        ("GRU", 12, 2, {"clip": 0.2}, ""),
        ("GRU", 136, 1, {}, ""),
        ("RNN", 3, 9, {"direction": "reverse"}, "lengths"),
        ("GRU", 16, 11, {"linear_before_reset": 1, "direction": "bidirectional"}, "lengths"),
        (
            "RNN",
            10,
            2,
            {
                "direction": "bidirectional",
                "activations": ["LeakyRelu", "HardSigmoid"],
                "activation_alpha": [0.3, 0.4],
                "activation_beta": [0.1],
            },
            "",
        ),
    ],
)
def test_recurrent_layers_agree(kind: str, hidden: int, batch: int, attributes: dict[str, Any], also: str) -> None:
    rng = np.random.default_rng(0)
    made, x = layer(rng, kind, hidden, batch, attributes, also)
    assert_same(run_cpu(made, {"x": x}), run_ort(made, {"x": x}))


def layer(
    rng: np.random.Generator, kind: str, hidden: int, batch: int, attributes: dict[str, Any], also: str
) -> tuple[onnx.ModelProto, np.ndarray]:
    """A model of one layer, and its input of three steps."""
    both = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[kind] * hidden
    shapes = {"w": (both, gates, 7), "r": (both, gates, hidden), "b": (both, 2 * gates), "h": (both, batch, hidden)}
    shapes |= {"c": (both, batch, hidden)} if kind == "LSTM" else {}
    shapes |= {"p": (both, 3 * hidden)} if also == "peephole" else {}
    constants = {name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    if also == "lengths":
        constants["ends"] = np.arange(batch, dtype=np.int32) % 3 + 1
    x = rng.standard_normal((3, batch, 7)).astype(np.float32)
    given, written = ["x", "w", "r", "b", "ends" if also == "lengths" else "", "h"], ["y", "last"]
    if kind == "LSTM":
        given, written = [*given, "c", *(["p"] if also == "peephole" else [])], [*written, "cell"]
    node = helper.make_node(kind, given, written, hidden_size=hidden, **attributes)
    return model([node], {"x": x}, written, constants), x


def test_layers_of_any_batch_number_and_length_of_sequences_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    shapes = {"w": (2, 96, 5), "r": (2, 96, 24), "gw": (1, 27, 48), "gr": (1, 27, 9), "gb": (1, 54)}
    constants = {name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    constants["places"] = np.array([0, 0, 48], np.int64)
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "", "ends"], ["y", "last"], hidden_size=24, direction="bidirectional"),
        helper.make_node("Transpose", ["y"], ["moved"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["moved", "places"], ["wide"]),
        helper.make_node("GRU", ["wide", "gw", "gr", "gb"], ["z"], hidden_size=9, direction="reverse"),
    ]
    inputs = {"x": ("float32", ("steps", "batch", 5)), "ends": ("int32", ("batch",))}
    feeds = [
        {
            "x": rng.standard_normal((steps, batch, 5)).astype(np.float32),
            "ends": rng.integers(1, steps + 1, batch).astype(np.int32),
        }
        for steps, batch in ((1, 1), (4, 11))
    ]
    compare(dynamic_model(nodes, inputs, ["z", "last"], constants), tmp_path, feeds)


@pytest.mark.parametrize("kind, hidden", [("LSTM", 256), ("GRU", 300)])
def test_a_layer_whose_steps_are_divided_among_threads_agrees(kind: str, hidden: int) -> None:
    rng, gates = np.random.default_rng(1), GATES[kind] * hidden
    shapes = {"w": (1, gates, 4), "r": (1, gates, hidden)}
    constants = {name: rng.uniform(-0.1, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.standard_normal((4, 3, 4)).astype(np.float32)
    made = model([helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=hidden)], {"x": x}, ["y"], constants)
    assert_same(run_cpu(made, {"x": x}), run_ort(made, {"x": x}))


@pytest.mark.parametrize("hidden, batch, tiles", [(128, None, 4), (120, None, 5), (120, 9, 2)])
def test_the_sums_of_a_tile_that_occurs_are_written_once(hidden: int, batch: int | None, tiles: int) -> None:
    # Of any number of rows there are tiles of 1 to 3 and 6. One thread has batches of 1, of 120 columns also of 2, and
    # several have others, of which no tile has one row. The last group of 120 columns has columns that do not exist,
    # and the sums of any other group.
    functions = tuple(activations(["Sigmoid", "Tanh", "Tanh"], [], []))
    lstm = Layer("LSTM", None, batch, hidden, False, functions, False, "float32")
    loops: list[tirx.For] = []
    requested = recurrent_request(lstm).with_attr("global_symbol", "k")
    written = write_requested(requested, Isa(AVX512, 16, 32))
    tvm_ffi.structural_walk(written.body, [(tirx.For, loops.append)], order="pre")
    terms = [loop for loop in loops if loop.extent == hidden // UNROLL and "recurrence" in str(loop.body)]
    assert len(terms) == tiles


@pytest.mark.parametrize("kind, hidden, attributes", [("LSTM", 100, {}), ("GRU", 1100, {"linear_before_reset": 1})])
def test_weights_are_brought_into_the_order_of_the_kernel_at_compile_time(
    kind: str, hidden: int, attributes: dict[str, Any]
) -> None:
    made, _ = layer(np.random.default_rng(2), kind, hidden, 1, attributes, "")
    module = kernel_module(job(made), tvm.target.Target("llvm"))
    main = module.mod["main"]
    weights = set(list(main.params)[1:])
    read = [set(vars_of(b.value)) for b in bindings_of(main)]
    assert not [names for names in read if names and names <= weights]
