"""Types of ONNX Runtime's own operators are known in branches and bodies, too, so that code is generated for these."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.compiler.checking.compare import QUANTISED, compare
from heterocc.compiler.importer.symbols.one_node import infer_node
from heterocc.passes.graph import Value
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, run_original, save, value

MICROSOFT = "com.microsoft"


@pytest.mark.parametrize(
    ("inferred", "inputs", "right"),
    [
        (
            node("SkipLayerNormalization", "x x s", "y - - sum", domain=MICROSOFT),
            {"x": ("n", 3, 8), "s": (8,)},
            [("float32", ("n", 3, 8)), (None, None), (None, None), ("float32", ("n", 3, 8))],
        ),
        (node("SimplifiedLayerNormalization", "x s", "y"), {"x": (2, 8), "s": (8,)}, [("float32", (2, 8))]),
        (node("NoSuchOperator", "x", "y", domain=MICROSOFT), {"x": (2,)}, []),
    ],
    ids=["SkipLayerNormalization", "SimplifiedLayerNormalization", "an unknown operator"],
)
def test_onnx_runtime_infers_the_types_of_its_operators(
    inferred: onnx.NodeProto, inputs: dict[str, tuple[int | str, ...]], right: list[Any]
) -> None:
    table = {name: Value(name, "float32", shape) for name, shape in inputs.items()}
    assert list(infer_node(inferred, 17, table, {}) or ()) == right


@pytest.mark.slow
def test_a_quantised_lstm_in_a_scan_compiles_for_the_cpu(tmp_path: Path) -> None:
    width, size = 4, 3
    constants = {
        "w": (noise(1, size, 4 * width) * 50).astype(np.int8),
        "r": (noise(1, width, 4 * width, seed=1) * 50).astype(np.int8),
        "scale": np.array([0.02], np.float32),
        "zero": np.zeros(1, np.int8),
        "axis": np.array([0]),
    }
    inner = [
        node("Unsqueeze", "row axis", "step"),
        node(
            "DynamicQuantizeLSTM", "step w r - - h c - scale zero scale zero", "all h1 c1",
            hidden_size=width, domain=MICROSOFT,
        ),
        node("Squeeze", "h1 axis", "out"),
    ]  # fmt: skip
    state = [1, 1, width]
    body = helper.make_graph(
        inner,
        "body",
        [value("h", state), value("c", state), value("row", [1, size])],
        [value("h1", state), value("c1", state), value("out", [1, width])],
    )
    scan = helper.make_node("Scan", ["h0", "c0", "x"], ["last", "cell", "y"], body=body, num_scan_inputs=1)
    made = model(
        [scan],
        [value("x", ["t", 1, size]), value("h0", state), value("c0", state)],
        [value("last", state), value("cell", state), value("y", ["t", 1, width])],
        constants,
        domains=[(MICROSOFT, 1)],
    )
    path, feed = save(tmp_path, made), {"x": noise(5, 1, size), "h0": noise(*state), "c0": noise(*state)}
    compile_model(path, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        for found, right in zip(session.run(feed).values(), run_original(path, feed), strict=True):
            assert compare("y", found, right, QUANTISED).ok
