"""What a model repeats is derived once: the import of many nodes takes time for what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import shape_inference

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.shapes import propose, shapes
from heterocc.compiler.importer.symbols import agree, one_node
from heterocc.compiler.support.query import query_model
from tests.compiler.onnx_build import I64, model, node, value


def layers(count: int) -> onnx.ModelProto:
    nodes = []
    for n in range(count):
        nodes += [
            node("Gemm", f"v{n} w b", f"a{n}"),
            node("Relu", f"a{n}", f"r{n}"),
            node("Add", f"r{n} b", f"v{n + 1}"),
        ]
    constants = {"w": np.eye(16, dtype=np.float32), "b": np.ones(16, np.float32)}
    return model(nodes, [value("v0", ["n", 16])], [value(f"v{count}")], constants)


def counted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """The calls of a function, which go on to it."""
    calls: list[str] = []
    function: Callable[..., Any] = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        calls.append(name)
        return function(*given, **named)

    patch.setattr(owner, name, called)
    return calls


@pytest.mark.parametrize("count", [3, 60])
def test_a_kind_of_node_is_inferred_and_asked_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    one_node._remembered.cache_clear()
    inferred = counted(monkeypatch, shape_inference, "infer_node_outputs")
    asked = counted(monkeypatch, agree, "requirements_of")
    whole = counted(monkeypatch, shapes, "infer_onnx")
    imported = import_model(layers(count), keep_dims=True)
    assert imported.graph.values[imported.graph.outputs[0]].shape == ("n", 16)
    assert len(inferred) <= 6
    assert len(asked) <= 6
    assert len(whole) == 1


def test_a_query_finds_no_sizes_to_run_a_model_with(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch, propose, "_runner")
    imported = import_model(layers(2), keep_dims=True)
    assert not query_model(imported, "CPU,ORT").nowhere
    assert not runs
    assert dict(imported.samples) == {"v0": (1, 16)}
    assert len(runs) == 1


def test_nodes_of_one_kind_keep_names_of_their_own_for_sizes_of_a_run() -> None:
    nodes = [node("NonZero", f"x{n}", f"i{n}") for n in range(3)]
    inputs = [value(f"x{n}", ["n"]) for n in range(3)]
    imported = import_model(model(nodes, inputs, [value(f"i{n}", elem_type=I64) for n in range(3)]), keep_dims=True)
    found = [imported.graph.values[name].shape for name in imported.graph.outputs]
    assert found == [(1, f"{name}.1") for name in imported.graph.outputs]
