"""Loops that never begin are copies of their states, and rows of no trip, shaped as ONNX Runtime shapes them."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import assert_close, model, node, noise, run_imported, run_original, save, value


@pytest.mark.parametrize("constant", ["a limit of 0", "a condition that is false"])
def test_a_loop_without_trips_is_left_out(tmp_path: Path, constant: str) -> None:
    limit, first = ("n", "") if constant == "a limit of 0" else ("", "n")
    body = onnx.helper.make_graph(
        [node("Add", "a a", "b"), node("Exp", "b", "row"), node("Identity", "going", "goes")],
        "body",
        [value("i", [], 7), value("going", [], 9), value("a", [3])],
        [value("goes", [], 9), value("b", [3]), value("row", [3])],
    )
    loop = onnx.helper.make_node("Loop", [limit, first, "x"], ["last", "rows"], body=body)
    number = np.array(0) if first == "" else np.array(False)
    outputs = [value("last", [3]), value("rows", [None, 3])]
    path, feed = save(tmp_path, model([loop], [value("x", [3])], outputs, {"n": number})), {"x": noise(3)}
    imported = import_model(path)
    assert "Loop" not in {n.op_type for n in imported.graph.nodes}
    found, expected = run_imported(imported, feed), run_original(path, feed)
    assert [a.shape for a in found] == [a.shape for a in expected] == [(3,), (0, 3)]
    assert_close(found, expected)
