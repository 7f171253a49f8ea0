"""Resize by sizes, scales or a region that are inputs of the model, on the CPU, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from heterocc.compiler import compile_model
from heterocc.runtime import load

COORDINATES = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric")
FILTERS: Sequence[Mapping[str, Any]] = [
    {"mode": "nearest"},
    {"mode": "nearest", "nearest_mode": "ceil"},
    {"mode": "linear"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic"},
    {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
    {"mode": "cubic", "antialias": 1},
]
POLICIES = ("stretch", "not_larger", "not_smaller")
Case = tuple[str, Mapping[str, Any]]
"""The input that is computed, and the attributes."""

QUICK: Sequence[Case] = [
    ("scales", {"mode": "nearest"}),
    ("scales", {"mode": "linear", "antialias": 1}),
    ("roi", {"mode": "linear", "extrapolation_value": 7.0}),
]
ALL: Sequence[Case] = [
    ("sizes", {"mode": "cubic", "keep_aspect_ratio_policy": "not_larger", "exclude_outside": 1}),
    *(("sizes", {**f, "coordinate_transformation_mode": c}) for f, c in product(FILTERS, COORDINATES)),
    *(("scales", {**f, "coordinate_transformation_mode": c}) for f, c in product(FILTERS, COORDINATES[:3])),
    *(("sizes", {**f, "keep_aspect_ratio_policy": p}) for f, p in product(FILTERS, POLICIES[1:])),
    *(("roi", {**f, "extrapolation_value": 3.0}) for f in FILTERS if "antialias" not in f),
]


def model(what: str, attributes: Mapping[str, Any]) -> onnx.ModelProto:
    """Resize of the last two axes, the second of which comes first."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, "h", "w"])]
    kinds = {"roi": (TensorProto.FLOAT, 4), "scales": (TensorProto.FLOAT, 2), "sizes": (TensorProto.INT64, 2)}
    names = ("roi", "sizes") if what == "roi" else (what,)
    inputs += [helper.make_tensor_value_info(n, kinds[n][0], [kinds[n][1]]) for n in names]
    if what == "roi":
        attributes = {**attributes, "coordinate_transformation_mode": "tf_crop_and_resize"}
    given = [n if n in names else "" for n in ("roi", "scales", "sizes")]
    resize = helper.make_node("Resize", ["x", *given], ["r"], name="resize", axes=[3, 2], **attributes)
    nodes = [resize, helper.make_node("Relu", ["r"], ["y"], name="relu")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "resize", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


@pytest.mark.parametrize(
    ("what", "attributes"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in [*QUICK, *ALL]],
)
def test_a_map_is_resized_as_its_inputs_say(tmp_path: Path, what: str, attributes: Mapping[str, Any]) -> None:
    made = model(what, attributes)
    compile_model(made, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    reference = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    with load(tmp_path / "m.hcb") as session:
        for batch, height, width, *sizes in ((1, 5, 7, 9, 3), (2, 16, 12, 10, 20), (1, 3, 4, 4, 3)):
            feed: dict[str, np.ndarray] = {"x": rng.standard_normal((batch, 2, height, width)).astype(np.float32)}
            if what == "scales":
                feed["scales"] = np.array([sizes[0] / width, sizes[1] / height], np.float32)
            else:
                feed["sizes"] = np.array(sizes, np.int64)
            if what == "roi":
                feed["roi"] = np.array([0.2, -0.1, 0.8, 1.3], np.float32)
            expected = np.asarray(reference.run(None, feed)[0])
            found = session.run(feed)["y"]
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=f"{height}x{width} to {sizes}")
