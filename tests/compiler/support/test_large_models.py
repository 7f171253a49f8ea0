"""Questions about the nodes of large models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.names import host_device
from heterocc.compiler.importer import model as imported
from heterocc.compiler.importer.draft import draft
from heterocc.compiler.importer.folding import fold
from heterocc.compiler.importer.operators import functions
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.support.trial import Refusal, Support
from heterocc.passes.graph import Node
from tests.compiler.small import chain, save


def test_one_nodes_question_looks_at_the_whole_model_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = import_model(chain(tmp_path / "m.onnx", 40))
    seen: list[str] = []
    real = imported.ImportedModel._scales_of

    def counted(self: imported.ImportedModel, node: Any) -> Iterator[str]:
        seen.append(node.name)
        return real(self, node)

    monkeypatch.setattr(imported.ImportedModel, "_scales_of", counted)
    lowering, device = CpuLowering(), host_device()
    for node in model.graph.nodes[:4]:
        assert lowering.trial(model, node.name, device) is None
    assert len(seen) == len(model.graph.nodes)


@pytest.mark.parametrize(("op_type", "asked"), [("Mul", ["n0"]), ("Pow", ["n0", "n1"])])
def test_nodes_that_differ_in_numbers_are_of_one_kind_unless_code_depends_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op_type: str, asked: list[str]
) -> None:
    length = 40
    nodes = [
        helper.make_node(op_type, [f"v{i}" if i else "x", f"c{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(length)
    ]
    constants = {f"c{i}": np.full(4, 0.5 if i % 2 else 2.0, np.float32) for i in range(length)}
    model = import_model(save(tmp_path / "m.onnx", nodes, {"x": [2, 4]}, {f"v{length}": [2, 4]}, constants))
    seen: list[str] = []
    tried: list[str] = []
    real = Support._by_values

    def counted(self: Support, node: Node, device: TargetDevice) -> Refusal | None:
        seen.append(node.name)
        return real(self, node, device)

    class Fine:
        def trial(self, model: imported.ImportedModel, node: str, device: TargetDevice) -> str | None:
            tried.append(node)
            return None

    monkeypatch.setattr(Support, "_by_values", counted)
    support, device = Support(model, lambda _: Fine()), host_device()
    assert [support.refusal(node, device) for node in model.graph.nodes] == [None] * length
    assert seen == tried == asked


def test_an_import_reads_each_type_once_and_looks_for_nothing_that_no_node_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unneeded(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(fold, "_readers", unneeded)
    monkeypatch.setattr(functions, "types_of", unneeded)
    draft._known_type.cache_clear()
    import_model(chain(tmp_path / "m.onnx", 40))
    found = draft._known_type.cache_info()
    assert found.misses <= 4 < 40 <= found.hits
