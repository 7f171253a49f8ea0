"""Names of constants that the import makes: those of the model's own values stay theirs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import assert_close, model, node, noise, run_imported, value

F64 = TensorProto.DOUBLE

Array = np.ndarray


def _settled(x: Array) -> tuple[onnx.ModelProto, Array]:
    """A Reshape named r to a computed shape, beside a constant r_shape."""
    nodes = [
        node("Shape", "x", "size", start=0, end=1),
        node("Concat", "size rest", "wanted", axis=0),
        node("Reshape", "x wanted", "apart", "r"),
        node("Mul", "apart r_shape", "y"),
    ]
    constants = {"rest": np.array([2, 3]), "r_shape": noise(2, 3).astype(np.float64)}
    made = model(nodes, [value("x", ["n", 6], F64)], [value("y", elem_type=F64)], constants, opset=17)
    return made, x.reshape(-1, 2, 3) * constants["r_shape"]


def _scalar(x: Array) -> tuple[onnx.ModelProto, Array]:
    """A Range whose first number is a vector of one element named c, beside a constant c_scalar."""
    nodes = [
        node("Identity", "first", "c"),
        node("Range", "c end step", "numbers"),
        node("Sum", "x numbers c_scalar", "y"),
    ]
    constants = {
        "first": np.zeros(1),
        "end": np.array(6.0),
        "step": np.array(1.0),
        "c_scalar": noise(6).astype(np.float64),
    }
    made = model(nodes, [value("x", ["n", 6], F64)], [value("y", elem_type=F64)], constants, opset=17)
    return made, x + np.arange(6) + constants["c_scalar"]


def _bounds(x: Array) -> tuple[onnx.ModelProto, Array]:
    """A Clip of float64 of an old operator set, beside constants with the names of its result's bounds."""
    names = ("clipped_bound", "clipped_bound_1", "clipped_bound_2")
    nodes = [node("Clip", "x", "clipped", min=-0.25, max=0.5), node("Sum", " ".join(["clipped", *names]), "y")]
    constants = {name: noise(6).astype(np.float64) + place for place, name in enumerate(names)}
    made = model(nodes, [value("x", ["n", 6], F64)], [value("y", elem_type=F64)], constants, opset=8)
    return made, np.clip(x, -0.25, 0.5) + sum(constants.values())


@pytest.mark.parametrize("build", [_settled, _scalar, _bounds])
def test_a_constant_that_the_import_makes_leaves_values_of_the_model_alone(
    build: Callable[[Array], tuple[onnx.ModelProto, Array]],
) -> None:
    x = noise(4, 6).astype(np.float64)
    made, expected = build(x)
    assert_close(run_imported(import_model(made, keep_dims=True), {"x": x}), [expected])
