"""Denormal numbers are zeros in a run, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from heterocc.runtime.native import cpu_api

DENORMAL = np.float32(1e-39)
SIZE = 1 << 16
"""Elements that several threads share."""


def _halved(rows: int | str, *, gathered: bool = False) -> ModelProto:
    """x + x, and with `gathered` also x at an index."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows])]
    if gathered:
        nodes.append(helper.make_node("Gather", ["y", "at"], ["z"]))
        inputs.append(helper.make_tensor_value_info("at", TensorProto.INT64, [1]))
        outputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1]))
    graph = helper.make_graph(nodes, "sums", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _compiled(model: ModelProto, folder: Path, devices: str, *properties: str) -> Path:
    compile_model(model, folder / "m.hcb", devices=devices, properties=properties)
    return folder / "m.hcb"


def _keeps_denormals() -> bool:
    """Whether this thread computes with denormal numbers."""
    return bool((np.full(4, DENORMAL) + np.full(4, DENORMAL)).all())


@pytest.mark.parametrize("devices", ["CPU", "ORT"])
@pytest.mark.parametrize("rows", [SIZE, "n"])
@pytest.mark.parametrize("profile", [False, True])
def test_denormal_numbers_are_zeros_in_every_thread_of_a_run_and_not_behind_it(
    tmp_path: Path, devices: str, rows: int | str, profile: bool
) -> None:
    path = _compiled(_halved(rows), tmp_path, devices)
    session = load(path, threads=2, profile=profile)
    feed = {"x": np.full(SIZE, DENORMAL)}
    for _ in range(3):
        (found,) = session.run(feed).values()
        assert not found.any()
        assert _keeps_denormals()


@pytest.mark.parametrize("devices", ["CPU", "ORT"])
def test_the_property_keeps_denormal_numbers(tmp_path: Path, devices: str) -> None:
    path = _compiled(_halved(SIZE), tmp_path, devices, f"{devices}.denormals=on")
    (found,) = load(path, threads=2).run({"x": np.full(SIZE, DENORMAL)}).values()
    assert (found == DENORMAL + DENORMAL).all()


@pytest.mark.parametrize("devices", ["CPU", "ORT"])
def test_a_run_that_fails_leaves_the_callers_mode(tmp_path: Path, devices: str) -> None:
    path = _compiled(_halved("n", gathered=True), tmp_path, devices)
    session = load(path)
    with pytest.raises(HeteroccError):
        session.run({"x": np.full(8, DENORMAL), "at": np.array([8])})
    assert _keeps_denormals()


@pytest.mark.parametrize("devices", ["CPU", "ORT"])
def test_the_callback_of_a_request_computes_in_the_callers_mode(tmp_path: Path, devices: str) -> None:
    seen: list[bool] = []
    with load(_compiled(_halved(SIZE), tmp_path, devices), threads=2) as session:
        done = session.run_async({"x": np.full(SIZE, DENORMAL)})
        done.add_done_callback(lambda _: seen.append(_keeps_denormals()))
        (found,) = done.result().values()
    assert not found.any()
    assert seen == [True]
    assert _keeps_denormals()


@pytest.mark.parametrize("rows", [SIZE, "n"])
def test_a_callback_after_each_kernel_computes_in_the_callers_mode(tmp_path: Path, rows: int | str) -> None:
    seen: list[bool] = []
    session = load(_compiled(_halved(rows), tmp_path, "CPU"), threads=2)
    session.trace_kernels({"x": np.full(SIZE, DENORMAL)}, lambda *_: seen.append(_keeps_denormals()))
    assert seen and all(seen)
    assert _keeps_denormals()


def test_a_caller_that_takes_denormal_numbers_for_zeros_goes_on_doing_so(tmp_path: Path) -> None:
    path = _compiled(_halved(8), tmp_path, "CPU")
    session = load(path)
    with cpu_api.Denormals(kept=False):
        session.run({"x": np.full(8, DENORMAL)})
        assert not _keeps_denormals()
    assert _keeps_denormals()


def test_a_function_called_from_a_run_computes_in_the_callers_mode() -> None:
    seen = []
    call = cpu_api.with_denormals(lambda: seen.append(_keeps_denormals()), kept=True)
    with cpu_api.Denormals(kept=False):
        call()
        assert not _keeps_denormals()
    assert seen == [True]
