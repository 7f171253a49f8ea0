"""Resize of dimensions without a fixed size on the CPU, from one bundle at several sizes, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import FeedError
from heterocc.compiler import compile_model
from heterocc.runtime import load

COORDINATES = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")
ROUNDING = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
SCALES = ((1, 1, 2, 2), (1, 1, 3, 2), (1, 1, 0.5, 0.5), None)
SIZES = ((1, 5, 7, 9, 3), (2, 16, 33, 32, 66), (1, 1, 1, 4, 5), (1, 20, 31, 7, 62))
"""Batch, height and width of the input, and height and width of the tensor whose shape the output gets."""

Case = tuple[str, str, str, tuple[float, ...] | None]

QUICK: Sequence[Case] = [
    ("nearest", "asymmetric", "floor", (1, 1, 2, 2)),
    ("nearest", "half_pixel", "round_prefer_floor", None),
    ("linear", "pytorch_half_pixel", "floor", None),
    ("nearest", "align_corners", "floor", (1, 1, 0.5, 0.5)),
]
ALL: Sequence[Case] = [
    (mode, coordinates, rounding, scales)
    for mode, coordinates, rounding, scales in product(("nearest", "linear"), COORDINATES, ROUNDING, SCALES)
    if mode == "nearest" or rounding == "floor"
]


def model(mode: str, coordinates: str, rounding: str, scales: Sequence[float] | None) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "h", "w"])]
    nodes, weights = [], []
    if scales is None:
        inputs.append(helper.make_tensor_value_info("like", TensorProto.FLOAT, ["batch", 3, "out_h", "out_w"]))
        nodes.append(helper.make_node("Shape", ["like"], ["sizes"]))
    else:
        weights.append(numpy_helper.from_array(np.array(scales, np.float32), "scales"))
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    given = ["x", "", "", "sizes"] if scales is None else ["x", "", "scales"]
    nodes += [helper.make_node("Resize", given, ["r"], **attributes), helper.make_node("Relu", ["r"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "resize", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(
    ("mode", "coordinates", "rounding", "scales"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in ALL],
)
def test_a_resized_map_of_any_size_equals_onnx_runtime(
    tmp_path: Path, mode: str, coordinates: str, rounding: str, scales: tuple[float, ...] | None
) -> None:
    made = model(mode, coordinates, rounding, scales)
    compile_model(made, tmp_path / "m.hcb", devices="CPU")
    reference = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    rng, compared = np.random.default_rng(0), 0
    with load(tmp_path / "m.hcb") as session:
        for batch, height, width, out_height, out_width in SIZES:
            feed = {"x": rng.standard_normal((batch, 3, height, width)).astype(np.float32)}
            if scales is None:
                feed["like"] = np.zeros((batch, 3, out_height, out_width), np.float32)
            try:
                found = session.run(feed)["y"]
            except FeedError:
                assert (height, scales) == (1, (1, 1, 0.5, 0.5)), "only a result without elements is refused"
                continue
            np.testing.assert_allclose(found, np.asarray(reference.run(None, feed)[0]), atol=1e-5)
            compared += 1
    assert compared >= 3


def test_a_wide_filter_of_maps_of_any_size_equals_onnx_runtime(tmp_path: Path) -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, "h", "w"])]
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear", antialias=1)]
    weights = [numpy_helper.from_array(np.array([1, 1, 0.5, 0.3], np.float32), "scales")]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, None)], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    compile_model(made, tmp_path / "m.hcb", devices="CPU", check=False)
    reference = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(tmp_path / "m.hcb", threads=1) as session:
        for height, width in ((16, 20), (37, 65), (130, 71)):
            x = np.random.default_rng(0).standard_normal((1, 8, height, width)).astype(np.float32)
            np.testing.assert_allclose(session.run({"x": x})["y"], reference.run(None, {"x": x})[0], atol=1e-5)
