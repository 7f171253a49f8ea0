"""heterocc as an ONNX backend, run by ONNX's own test runner."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.base import Backend
from onnx.backend.test import runner

import heterocc.compiler.conformance.onnx_backend as backend
from heterocc.artifacts.errors import FeedError, UnknownDeviceError
from tests.compiler.onnx_build import model, node, value
from tests.conformance.sample import onnx_cases

UNCHECKED = {"check": False, "cpu_variant": False}


class CpuBackend(backend.HeteroccBackend):
    """The backend on CPU code alone: ONNX's runner has no other device here."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def failures(which: type[Backend], kinds: Callable[..., list[Any]]) -> dict[str, str]:
    """The last line of the error of each case that fails, by its name; `kinds` gives the cases of a kind."""
    found: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "load_model_tests", kinds)
        suite = runner.Runner(which, __name__, UNCHECKED).exclude("_cuda$").test_suite
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun > len(result.skipped), "no case ran"
    for case, trace in (*result.errors, *result.failures):
        found[case.id().rsplit(".", 1)[-1].removesuffix("_cpu")] = trace.strip().splitlines()[-1]
    return found


def a_few(kind: str) -> list[Any]:
    """The node tests of some operators."""
    modules = ("relu", "matmul", "concat", "softmax", "dynamicquantizelinear")
    names = ("relu", "matmul_2d", "concat_1d_axis_0", "softmax_axis_1", "dynamicquantizelinear")
    return onnx_cases(modules, [f"test_{name}" for name in names]) if kind == "node" else []


def test_onnx_runs_its_node_tests_on_heterocc() -> None:
    assert failures(CpuBackend, a_few) == {}


def test_a_model_runs_on_inputs_in_order_by_name_and_alone() -> None:
    proto = model([node("Sub", "x y", "d", "sub")], [value("x", [2]), value("y", [2])], [value("d", [2])])
    x, y = np.array([3, 4], np.float32), np.array([1, 1], np.float32)
    with backend.prepare(proto, "CPU", **UNCHECKED) as prepared:
        assert prepared.run([x, y]).d.tolist() == [2, 3]
        assert prepared.run({"y": y, "x": x})[0].tolist() == [2, 3]
        with pytest.raises(FeedError, match="the model has 2 inputs, not 1: x, y"):
            prepared.run(x)


def test_a_node_runs_alone_with_and_without_types_of_its_outputs() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    x = np.array([-1, 2], np.float32)
    assert backend.run_node(relu, [x], **UNCHECKED)[0].tolist() == [0, 2]
    typed = backend.run_node(relu, {"x": x}, outputs_info=[(x.dtype, x.shape)], opset_version=17, **UNCHECKED)
    assert typed[0].tolist() == [0, 2]


def test_devices_are_those_of_this_machine_and_an_unknown_one_is_an_error() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("CPU,ORT")
    assert not backend.supports_device("NPU")
    proto = model([node("Relu", "x", "y", "relu")], [value("x", [2])], [value("y", [2])])
    with pytest.raises(UnknownDeviceError):
        backend.prepare(proto, "NPU")


def test_a_model_with_an_operator_that_no_device_runs_is_not_compatible() -> None:
    text = onnx.TensorProto.STRING
    strings = model(
        [node("StringConcat", "x x", "y", "join")], [value("x", [2], text)], [value("y", [2], text)], opset=20
    )
    assert not backend.is_compatible(strings, "CPU")
    assert backend.is_compatible(strings, "CPU,ORT", **UNCHECKED)
