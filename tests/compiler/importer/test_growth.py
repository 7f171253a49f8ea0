"""Import of models with many nodes: its work grows linearly with the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import model, node, noise, save, value


def chain(count: int) -> onnx.ModelProto:
    return model(in_turn("Relu", count), [value("x", [3])], [value("y")])


def one_constant_a_node(count: int) -> onnx.ModelProto:
    nodes = in_turn("Add", count)
    for index, made in enumerate(nodes):
        made.input.append(f"c{index}")
    return model(nodes, [value("x", [3])], [value("y")], {f"c{i}": noise(3, seed=i) for i in range(count)})


def fan_into_one_node(count: int) -> onnx.ModelProto:
    names = [f"a{i}" for i in range(count)]
    nodes = [*(node("Relu", "x", name) for name in names), node("Concat", " ".join(names), "y", axis=0)]
    return model(nodes, [value("x", [3])], [value("y")])


def calls_of_one_function(count: int) -> onnx.ModelProto:
    inner = [node("Neg", "a", "m"), node("Relu", "m", "b")]
    function = helper.make_function("ours", "F", ["a"], ["b"], inner, [helper.make_opsetid("", 17)])
    nodes = in_turn("F", count, domain="ours")
    return model(nodes, [value("x", [3])], [value("y")], domains=[("ours", 1)], functions=[function])


def in_turn(op_type: str, count: int, domain: str = "") -> list[onnx.NodeProto]:
    """A chain of nodes."""
    names = ["x", *(f"a{i}" for i in range(count - 1)), "y"]
    return [node(op_type, names[i], names[i + 1], domain=domain) for i in range(count)]


KINDS = [chain, one_constant_a_node, fan_into_one_node, calls_of_one_function]


def calls_of(path: Path) -> int:
    """Calls of functions, of Python's and of C's, that an import makes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        import_model(path)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("build", KINDS)
def test_four_times_the_nodes_take_four_times_the_calls(
    tmp_path: Path, build: Callable[[int], onnx.ModelProto]
) -> None:
    few, many = (save(tmp_path, build(count), f"{count}.onnx") for count in (100, 400))
    import_model(few)  # modules and caches of the first import
    assert calls_of(many) < 4.2 * calls_of(few)


@pytest.mark.parametrize("build", KINDS)
def test_no_session_of_onnx_runtime_has_what_takes_quadratic_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[int], onnx.ModelProto]
) -> None:
    """ONNX Runtime's planner searches all outputs for each value, its ConstantSharing all constants for each one."""
    sessions: list[int] = []
    real = onnxruntime.InferenceSession
    initialised = state.InferenceSession.initialize_session

    def opened(*arguments: Any, disabled_optimizers: list[str], **keywords: Any) -> Any:
        assert {"ConstantSharing", "CommonSubexpressionElimination"} <= set(disabled_optimizers)
        return real(*arguments, disabled_optimizers=disabled_optimizers, **keywords)

    def planned(session: Any, *arguments: Any) -> Any:
        sessions.append(len(session.outputs_meta))
        return initialised(session, *arguments)

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    monkeypatch.setattr(state.InferenceSession, "initialize_session", planned)
    import_model(save(tmp_path, build(20)))
    assert sessions and set(sessions) == {1}
