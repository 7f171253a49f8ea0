"""Questions about the nodes of large models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heterocc.compiler.devices.names import host_device
from heterocc.compiler.importer import model as imported
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from tests.compiler.small import chain


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
