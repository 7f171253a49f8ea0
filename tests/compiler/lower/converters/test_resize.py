"""Resize picks the pixels that ONNX Runtime picks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.lower.converters.resize.resize_operators import axis_table
from heterocc.runtime.execute.ort_session import open_session, session_options
from tests.compiler.lower.lowered import model, run_cpu

TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resized(x: np.ndarray, scale: float, attrs: dict[str, Any]) -> np.ndarray:
    """ONNX Runtime's result for one axis of [1, 1, n, 1]."""
    opset = 12 if attrs["coordinate_transformation_mode"] == "tf_half_pixel_for_nn" else 19
    scales = numpy_helper.from_array(np.array([1, 1, scale, 1], np.float32), "scales")
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Resize", ["x", "", "scales"] if opset > 12 else ["x", "roi", "scales"], ["y"], **attrs)],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, x.size, 1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [scales, numpy_helper.from_array(np.zeros(0, np.float32), "roi")],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    session = open_session(made.SerializeToString(), session_options(threads=1))
    found: np.ndarray = session.run(None, {"x": x.reshape(1, 1, -1, 1)})[0]
    return found.reshape(-1)


@given(
    st.integers(1, 60),
    st.one_of(st.sampled_from([0.3, 0.6, 0.7, 1.1, 1.4, 1.7, 2.0, 2.3, 3.0]), st.floats(0.125, 4.0, width=32)),
    st.sampled_from(TRANSFORMS),
    st.sampled_from((*ROUNDINGS, "linear", "cubic")),
)
@example(3, 1.5, "align_corners", "floor")  # ONNX's reference takes a length that is not whole
@example(21, 1.7, "asymmetric", "floor")  # 17 / 1.7 is 10 in float32 and below it in float64
def test_an_axis_is_resized_as_onnx_runtime_resizes_it(size: int, scale: float, transform: str, how: str) -> None:
    length = float(np.float32(scale)) * size
    out = int(length)
    if int(np.float32(length)) != out:
        return  # ONNX Runtime computes another shape than it infers
    if out in (0, size):
        return  # of one length it is a copy
    if transform == "tf_half_pixel_for_nn" and how not in ROUNDINGS:
        return
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    attrs: dict[str, Any] = {"coordinate_transformation_mode": transform}
    attrs |= {"mode": "nearest", "nearest_mode": how} if how in ROUNDINGS else {"mode": how}
    index, weight = axis_table(size, float(np.float32(scale)), out, attrs)
    ours = (x[index] * weight).sum(axis=1)
    expected = resized(x, scale, attrs)
    assert expected.size == out
    np.testing.assert_allclose(ours, expected, rtol=0, atol=0 if how in ROUNDINGS else 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_resize_to_the_same_size_is_a_copy_in_every_mode(mode: str) -> None:
    feeds = {"x": np.random.default_rng(3).standard_normal((1, 2, 3, 5)).astype(np.float32)}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    found = run_cpu(model([node], feeds, ["y"], {"scales": np.ones(4, np.float32)}), feeds)
    np.testing.assert_array_equal(found["y"], feeds["x"])
