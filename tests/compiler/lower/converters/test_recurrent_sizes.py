"""Recurrent layers of dynamic length and batch, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.lower.converters.recurrent_reference import outputs_of
from tests.reference import reference_session

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WIDTH = 5
SIZES = ((1, 1), (4, 1), (3, 2), (2, 7), (5, 9), (2, 16))
"""Lengths and batches: tiles of all sizes, and one that follows another."""

CASES: dict[str, tuple[str, int, dict[str, Any], tuple[str, ...]]] = {
    "all inputs of an LSTM": (
        "LSTM",
        40,
        {"direction": "bidirectional", "clip": 0.8},
        ("B", "sequence_lens", "initial_h", "initial_c", "P"),
    ),
    "only the cell is given": ("LSTM", 17, {"direction": "reverse", "input_forget": 1}, ("B", "initial_c")),
    "an LSTM of the batch first": (
        "LSTM",
        16,
        {"layout": 1, "activations": ["HardSigmoid", "Softsign", "Relu"]},
        ("initial_h", "initial_c"),
    ),
    "no states": ("LSTM", 70, {"direction": "bidirectional"}, ("B", "sequence_lens")),
    "a GRU": ("GRU", 36, {"direction": "bidirectional"}, ("B", "sequence_lens", "initial_h")),
    "a GRU without states": ("GRU", 100, {"clip": 0.5}, ("B",)),
    "a GRU of PyTorch": ("GRU", 83, {"linear_before_reset": 1, "direction": "reverse"}, ("B", "sequence_lens")),
    "a GRU of the batch first": ("GRU", 7, {"linear_before_reset": 1, "layout": 1}, ("initial_h",)),
    "an RNN": ("RNN", 150, {"direction": "bidirectional", "activations": ["Relu", "Softsign"]}, ("B", "initial_h")),
    "a small RNN": ("RNN", 3, {"clip": 0.6}, ("sequence_lens",)),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (turn % 2)) for turn, case in enumerate(CASES)]
)
def test_a_layer_of_dynamic_length_and_batch_computes_what_onnx_defines(case: str, tmp_path: Path) -> None:
    kind, hidden, attributes, optional = CASES[case]
    rng = np.random.default_rng(3)
    both = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"W": (both, GATES[kind] * hidden, WIDTH), "R": (both, GATES[kind] * hidden, hidden)}
    shapes |= {"B": (both, 2 * GATES[kind] * hidden)} if "B" in optional else {}
    shapes |= {"P": (both, 3 * hidden)} if "P" in optional else {}
    weights = {name: rng.uniform(-1, 1, s).astype(np.float32) / np.float32(s[-1] ** 0.5) for name, s in shapes.items()}
    made = layer(kind, hidden, attributes, weights, optional)
    known = not attributes.get("layout")  # ONNX Runtime, with which a compile compares, has no batch first
    compile_model(made, tmp_path / "m.hcb", devices="CPU", check=known)
    session = load(tmp_path / "m.hcb", threads=2)
    for steps, batch in SIZES:
        feed = inputs(rng, hidden, attributes, optional, steps, batch)
        found = session.run(None, feed)
        wanted = outputs_of(kind, {**weights, **feed}, {**attributes, "hidden_size": hidden})
        for ours, exact in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, exact, rtol=0, atol=5e-6, err_msg=f"{steps} steps, batch {batch}")


@pytest.mark.parametrize("lengths", [False, True])
def test_a_sequence_without_steps_ends_with_zeros(lengths: bool, tmp_path: Path) -> None:
    """As in ONNX Runtime, whatever the state it begins with."""
    rng = np.random.default_rng(3)
    weights = {"W": rng.standard_normal((1, 4, WIDTH)), "R": rng.standard_normal((1, 4, 4))}
    optional = ("initial_h", *(["sequence_lens"] if lengths else []))
    made = layer("RNN", 4, {}, {name: w.astype(np.float32) for name, w in weights.items()}, optional)
    if not lengths:
        made.graph.node[0].output[0] = ""
        del made.graph.output[0]
    compile_model(made, tmp_path / "m.hcb", devices="CPU", measure=False)
    feed = inputs(rng, 4, {}, optional, 3 if lengths else 0, 2)
    if lengths:
        feed["sequence_lens"][1] = 0
    found, wanted = load(tmp_path / "m.hcb").run(None, feed), reference_session(made).run(None, feed)
    assert not found[-1][0, 1].any()
    for ours, exact in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=0, atol=5e-6)


def inputs(
    rng: np.random.Generator, hidden: int, attributes: dict[str, Any], optional: tuple[str, ...], steps: int, batch: int
) -> dict[str, np.ndarray]:
    """Seeded inputs of the run."""
    both = 2 if attributes.get("direction") == "bidirectional" else 1
    feed = {"X": rng.standard_normal((steps, batch, WIDTH)).astype(np.float32)}
    for name in ("initial_h", "initial_c"):
        if name in optional:
            feed[name] = rng.uniform(-1, 1, (both, batch, hidden)).astype(np.float32)
    if attributes.get("layout"):
        feed = {name: np.ascontiguousarray(value.swapaxes(0, 1)) for name, value in feed.items()}
    if "sequence_lens" in optional:
        feed["sequence_lens"] = rng.integers(0 if steps > 1 else 1, steps - steps // 4 + 1, batch).astype(np.int32)
        feed["sequence_lens"][0] = steps - steps // 4  # the last outputs of long ones are zeros in all rows
    return feed


def layer(
    kind: str, hidden: int, attributes: dict[str, Any], weights: dict[str, np.ndarray], optional: tuple[str, ...]
) -> onnx.ModelProto:
    """A layer of dynamic length and batch with some of its inputs."""
    both = 2 if attributes.get("direction") == "bidirectional" else 1
    first, second = ("batch", "steps") if attributes.get("layout") else ("steps", "batch")
    state = ["batch", both, hidden] if attributes.get("layout") else [both, "batch", hidden]
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", *(["initial_c", "P"] if kind == "LSTM" else [])]
    given = [name if name in ("X", "W", "R", *optional) else "" for name in names]
    types = {"X": (TensorProto.FLOAT, [first, second, WIDTH]), "sequence_lens": (TensorProto.INT32, ["batch"])}
    types |= dict.fromkeys(("initial_h", "initial_c"), (TensorProto.FLOAT, state))
    results = ["Y", "Y_h", *(["Y_c"] if kind == "LSTM" else [])]
    graph = helper.make_graph(
        [helper.make_node(kind, given, results, hidden_size=hidden, **attributes)],
        "layer",
        [helper.make_tensor_value_info(name, *types[name]) for name in given if name in types],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
