"""TVM writes warnings to stderr itself; compiles and queries suppress them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from tvm import relax

from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.tvm_fixes.legalise import legalised
from heterocc.compiler.lower.vulkan.lowering import VulkanLowering
from tests.compiler.lower.lowered import CPU, job, model
from tests.compiler.lower.vulkan_run import ROOMY

X = np.ones((1, 2, 6, 6), np.float32)
NODES = [
    helper.make_node("Pow", ["x", "four"], ["power"]),
    helper.make_node("LpPool", ["x"], ["norm"], kernel_shape=[2, 2], p=3),
    helper.make_node("TopK", ["x", "two"], ["best", ""]),
    helper.make_node("ScatterElements", ["x", "where", "x"], ["scattered"], axis=3),
    helper.make_node("GatherND", ["x", "places"], ["gathered"]),
    helper.make_node("CumSum", ["x", "axis"], ["sums"]),
]
QUIET_SINCE_THEY_LOWER = [
    helper.make_node("RMSNormalization", ["x", "scale"], ["normal"], axis=0),
    helper.make_node("Split", ["x", "parts"], ["first", "second", "third"], axis=3),
]
CONSTANTS = {"four": np.array(4, np.float32), "two": np.array([2]), "axis": np.array(1)}
INDICES = {"where": np.zeros((1, 2, 6, 6), np.int64), "places": np.zeros((3, 4), np.int64)}


def test_compiling_operators_of_which_tvm_warns_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    outputs = ["power", "norm", "best", "scattered", "gathered", "sums"]
    CpuLowering().lower(job(model(NODES, {"x": X, **INDICES}, outputs, CONSTANTS, opset=17)))
    assert capfd.readouterr() == ("", "")


def test_a_refused_node_leaves_no_builder_open(capfd: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["x", "classes"], ["y"], name="refused")
    classes = {"classes": np.zeros((len(X), *X.shape[2:]), np.int64)}
    made = model([helper.make_node("Relu", ["x"], ["x2"], name="fine"), node], {"x": X}, ["x2", "y"], classes)
    assert CpuLowering().trial(made, "refused", CPU) is not None
    assert capfd.readouterr() == ("", "")


def test_operators_that_tvm_legalised_wrongly_are_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM warned of an open builder on stderr when its own legalisation refused them."""
    constants = {"scale": X, "parts": np.array([0, 4, 2])}
    outputs = ["normal", "first", "second", "third"]
    CpuLowering().lower(job(model(QUIET_SINCE_THEY_LOWER, {"x": X}, outputs, constants, opset=23)))
    assert capfd.readouterr() == ("", "")


def test_an_operator_that_tvm_refuses_to_legalise_is_an_error_and_leaves_no_builder_open(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The mean of more terms than float16 can count, computed in float16."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 70000), "float16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            mean = builder.emit_output(builder.emit(relax.op.mean(x, [1])))
        builder.emit_func_output(mean)
    with pytest.raises(ValueError, match="exceeds maximum of float16"):
        legalised(builder.get())
    assert capfd.readouterr() == ("", "")


def test_the_mean_of_more_terms_than_float16_can_count_is_lowered() -> None:
    """Sums are float32 on every device (`magnitudes.py`)."""
    node = helper.make_node("ReduceMean", ["x"], ["y"], name="mean", axes=[1], keepdims=0)
    made = model([node], {"x": np.ones((1, 70000), np.float16)}, ["y"], opset=13)
    assert VulkanLowering().trial(made, "mean", ROOMY) is None
