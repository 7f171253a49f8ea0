"""The support query with heterocc's own lowerings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.devices.present import accelerators
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.placement.machine import build_machine
from heterocc.compiler.support.cache import Answers
from heterocc.compiler.support.query import query_model
from heterocc.passes.base import policy_pipeline
from heterocc.passes.plan import Plan


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """conv -> relu -> determinant, and strings beside it."""
    generator = np.random.default_rng(0)
    constants = {
        "w": generator.standard_normal((4, 3, 3, 3), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Det", ["r"], ["q"], name="det"),
        helper.make_node("StringConcat", ["s", "s"], ["t"], name="words"),
    ]
    graph = helper.make_graph(
        nodes,
        "mixed",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 17, 17]),
            helper.make_tensor_value_info("s", TensorProto.STRING, [2]),
        ],
        [
            helper.make_tensor_value_info("q", TensorProto.FLOAT, [1, 4]),
            helper.make_tensor_value_info("t", TensorProto.STRING, [2]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path = tmp_path / "mixed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def test_a_real_graph_is_answered_with_reasons(mixed: Path) -> None:
    result = query_model(mixed, "CPU,ORT", cache=Answers())
    assert result.supports("conv", "CPU")
    assert result.reason("det", "CPU") is not None
    assert "string, which is not a numeric tensor" in (result.reason("words", "CPU") or "")
    assert result.unsupported("ORT") == ()
    assert result.nowhere == ()
    assert result["words"] == "ORT"


def test_without_the_last_resort_a_node_that_nobody_runs_is_named(mixed: Path) -> None:
    result = query_model(mixed, "CPU", cache=Answers())
    assert "words" in [result.graph.node_by_name[n].label for n in result.nowhere]
    assert "no device runs" in result.to_text()


def test_a_second_query_of_a_model_asks_nothing_again(mixed: Path, tmp_path: Path) -> None:
    store = Answers(tmp_path / "cache")
    first = query_model(mixed, "CPU,ORT", cache=store)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*.json")}

    def no_lowering(device: TargetDevice) -> None:
        raise AssertionError(f"{device.name} was asked again")

    second = query_model(mixed, "CPU,ORT", cache=store, lowering=no_lowering)  # type: ignore[arg-type]
    assert second.to_json() == first.to_json()
    assert before
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*.json")} == before


def test_a_query_is_the_same_twice(mixed: Path) -> None:
    first, second = (query_model(mixed, "CPU,ORT", cache=Answers()).to_json() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_a_query_feeds_the_passes(mixed: Path) -> None:
    model = import_model(mixed)
    devices, _ = resolve_devices("CPU,ORT")
    result = query_model(model, devices, cache=Answers())
    plan = Plan.initial(model.graph, build_machine(model, devices, result.reasons()))
    for pass_ in policy_pipeline("greedy"):  # merge would move the small convolution, too
        plan = pass_.run(plan)
    placed = {model.graph.node_by_name[n].label: d for n, d in plan.device_of.items()}
    assert placed["conv"] == "CPU"
    assert placed["words"] == "ORT"


def test_a_cpu_of_another_architecture_is_asked_without_being_here(mixed: Path) -> None:
    arm = TargetDevice("CPU", "cpu", target={"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"})
    assert query_model(mixed, [arm], cache=Answers()).supports("conv", "CPU")


@pytest.mark.opencl
def test_an_opencl_device_is_asked_by_its_own_lowering(mixed: Path) -> None:
    found = accelerators()
    if found.missing:
        pytest.skip(found.missing[0][1])
    result = query_model(mixed, "OPENCL,CPU,ORT", cache=Answers())
    assert result.supports("conv", "OPENCL")
    assert not result.supports("words", "OPENCL")
