"""What a model repeats is derived once: the import of many nodes takes time for what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, shape_inference

from heterocc.compiler.importer.folding import simplify
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.repeating import kept
from heterocc.compiler.importer.shapes import propose, shapes
from heterocc.compiler.importer.symbols import agree, derivation, one_node
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


@pytest.mark.parametrize("count", [3, 60])
def test_the_sizes_that_a_kind_of_node_computes_are_derived_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    nodes = []
    for n in range(count):
        nodes += [
            node("Shape", f"v{n}", f"s{n}"),
            node("Gather", f"s{n} first", f"g{n}"),
            node("Concat", f"g{n} rest", f"c{n}", axis=0),
            node("Reshape", f"v{n} c{n}", f"r{n}"),
            node("Tanh", f"r{n}", f"v{n + 1}"),
        ]
    constants = {"first": np.array([0]), "rest": np.array([16])}
    made = model(nodes, [value("v0", ["n", 16])], [value(f"v{count}")], constants)
    derived = counted(monkeypatch, derivation, "_derive_one")
    linked = counted(monkeypatch, simplify, "take_apart")
    whole = counted(monkeypatch, shapes, "infer_onnx")
    imported = import_model(made, keep_dims=True)
    assert len(whole) == 2  # before and after the nodes that compute sizes are gone, whatever constants are called
    assert imported.graph.values[imported.graph.outputs[0]].shape == ("n", 16)
    assert {n.op_type for n in imported.graph.nodes} == {"Reshape", "Tanh"}
    assert len(derived) <= 20
    assert not linked


def test_a_query_finds_no_sizes_to_run_a_model_with(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch, propose, "runner")
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


def test_the_copies_in_the_body_of_a_loop_are_found_once_for_all_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    count, names = 20, {}
    for kind in ("s", "o", "y"):
        names[kind] = [f"{kind}{n}" for n in range(count)]
    kept_states = names["s"][:5]
    nodes = [node("Identity", "going", "goes")]
    nodes += [
        node("Identity" if s in kept_states else "Neg", s, o) for s, o in zip(names["s"], names["o"], strict=True)
    ]
    inputs = [value("i", [], I64), value("going", [], TensorProto.BOOL), *(value(s, [2]) for s in names["s"])]
    outputs = [value("goes", [], TensorProto.BOOL), *(value(o, [2]) for o in names["o"])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    loop = node("Loop", " ".join(["m", "-", *["x"] * count]), " ".join(names["y"]), body=body)
    found = counted(monkeypatch, kept, "copies_in")
    ends = [value("m", [], I64), value("x", [2])], [value(y, [2]) for y in names["y"]]
    imported = import_model(model([loop], *ends))
    (left,) = (n for n in imported.proto.graph.node if n.op_type in ("Loop", "Scan"))
    assert len([o for o in left.output if o]) == count - len(kept_states)
    assert len(found) <= 4
