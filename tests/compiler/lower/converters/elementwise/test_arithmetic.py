"""Elementwise operators in float64, and tensors of one value."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.lower.lowered import model, run_cpu
from tests.ml_models import assert_equal

ALPHA, GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def test_activations_of_float64_are_computed_in_it() -> None:
    x = np.linspace(-3, 3, 25)
    nodes = [helper.make_node("Selu", ["x"], ["y"]), helper.make_node("ThresholdedRelu", ["x"], ["z"], alpha=0.5)]
    found = run_cpu(model(nodes, {"x": x}, ["y", "z"]), {"x": x})
    np.testing.assert_allclose(found["y"], GAMMA * np.where(x > 0, x, ALPHA * np.expm1(x)), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(found["z"], np.where(x > 0.5, x, 0))


@pytest.mark.parametrize("value", [-np.inf, np.nan, 2.5])
def test_tensors_of_one_value_have_any_value_at_dynamic_shapes(value: float) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["y"], value=numpy_helper.from_array(np.array([value], np.float32))),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "m"]) for n in "xy"]
    made: onnx.ModelProto = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    )
    assert_equal(made, [{"x": np.ones((2, 3), np.float32)}])
