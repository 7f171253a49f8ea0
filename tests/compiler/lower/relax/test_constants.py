"""Constants of a model while its nodes are converted."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.compiler.lower.relax import importer
from tests.compiler.lower.lowered import job, model

LAYERS = 4


def test_integers_of_a_layer_are_made_for_its_node_and_dropped_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Add", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(LAYERS)]
    nodes.append(helper.make_node("Mul", [f"x{LAYERS}", "w0"], ["y"]))
    weights = {f"w{n}": np.full((8, 8), n, np.int32) for n in range(LAYERS)}
    held: list[list[str]] = []

    class Watched(importer._Importer):
        def _outputs(self, index: int, node: onnx.NodeProto) -> list[object]:
            found: list[object] = super()._outputs(index, node)
            held.append([name for name in weights if name in self._nodes])
            return found

    monkeypatch.setattr(importer, "_Importer", Watched)
    importer.import_function(job(model(nodes, {"x0": np.zeros((8, 8), np.int32)}, ["y"], weights)))
    assert held == [["w0"], ["w0", "w1"], ["w0", "w2"], ["w0", "w3"], ["w0"]]
