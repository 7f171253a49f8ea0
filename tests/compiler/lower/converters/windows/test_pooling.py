"""Pooling whose window covers its whole input, and some that nearly does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import FeedError
from heterocc.compiler import compile_model
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.runtime import load
from tests.compiler import onnx_build
from tests.compiler.lower.cpu.generate.generated import runnable, target_of
from tests.compiler.lower.lowered import assert_same, job, model, run_cpu, run_ort
from tests.reference import reference_session

X = np.random.default_rng(2).standard_normal((2, 3, 7, 5)).astype(np.float32)


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [640, 640], "strides": [640, 640], "ceil_mode": 1},
        {"kernel_shape": [7, 5]},
        {"kernel_shape": [9, 7], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [7, 5], "strides": [3, 3], "pads": [1, 0, 1, 2], "ceil_mode": 1},
        {"kernel_shape": [7, 4]},
        {"kernel_shape": [3, 2], "dilations": [3, 4]},
        {"kernel_shape": [8, 6], "pads": [2, 2, 2, 2], "count_include_pad": 1},
    ],
    ids=str,
)
def test_windows_as_large_as_the_input_agree(kind: str, attributes: dict[str, object]) -> None:
    if kind == "MaxPool":
        attributes = {k: v for k, v in attributes.items() if k != "count_include_pad"}
    made = model([helper.make_node(kind, ["x"], ["y"], **attributes)], {"x": X}, ["y"], opset=19)
    assert_same(run_cpu(made, {"x": X}), run_ort(made, {"x": X}))


def test_padding_that_a_huge_window_takes_is_not_added_up() -> None:
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1280] * 2, strides=[1280] * 2, ceil_mode=1)
    module = kernel_module(job(model([node], {"x": X}, ["y"])), target_of(runnable()[0]))
    assert "1280" not in module.mod.script()


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 2, 3], "strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 1]},
        {"kernel_shape": [2, 3, 2], "dilations": [2, 1, 3], "pads": [0, 1, 0, 1, 0, 0]},
        {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "ceil_mode": 1},
    ],
    ids=str,
)
def test_maxima_over_windows_of_three_dimensions_agree(attributes: dict[str, object]) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 6, 7, 9)).astype(np.float32)
    made = model([helper.make_node("MaxPool", ["x"], ["y"], **attributes)], {"x": x}, ["y"], opset=19)
    assert_same(run_cpu(made, {"x": x}), run_ort(made, {"x": x}))


@pytest.mark.parametrize(("devices", "last"), [("CPU", 0), ("CPU", 1), ("ORT", 1)])
def test_quantised_windows_of_any_size_agree_and_fit_or_are_an_error(tmp_path: Path, devices: str, last: int) -> None:
    """Code for them could not be generated, and ONNX Runtime divided by a width of 0, which ended the process."""
    values = {"i": np.float32(0.1), "j": np.uint8(3), "k": np.float32(0.12), "l": np.uint8(5)}
    pool = helper.make_node(
        "QLinearAveragePool", ["x", *values], ["y"], domain="com.microsoft", kernel_shape=[2, 2], channels_last=last
    )
    proto = onnx_build.model(
        [pool],
        [onnx_build.value("x", ["a", "b", "c", "d"], TensorProto.UINT8)],
        [onnx_build.value("y", None, TensorProto.UINT8)],
        {name: np.array(number) for name, number in values.items()},
        domains=[("com.microsoft", 1)],
    )
    reference = reference_session(proto)
    compile_model(proto, tmp_path / "m.hcb", devices=devices, check=False)
    with load(tmp_path / "m.hcb") as session:
        for height, width in ((5, 4), (9, 19), (2, 2), (5, 1), (1, 1), (0, 2)):
            shape = (2, height, width, 3) if last else (2, 3, height, width)
            feed = {"x": np.arange(6 * height * width, dtype=np.uint8).reshape(shape)}
            if min(height, width) < 2:
                with pytest.raises(FeedError):
                    session.run(feed)
                continue
            wanted = reference.run(None, feed)[0]
            assert np.abs(session.run(feed)["y"].astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("dims", [[1, 7, 6, 2], [1, "h", "w", 2]], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("counts", [0, 1])
def test_quantised_means_count_what_lies_beyond_the_padding_where_padding_counts(
    tmp_path: Path, dims: list[int | str], counts: int
) -> None:
    values = {"i": np.float32(0.1), "j": np.uint8(100), "k": np.float32(0.05), "l": np.uint8(90)}
    window = {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1, "channels_last": 1}
    pool = helper.make_node(
        "QLinearAveragePool", ["x", *values], ["y"], domain="com.microsoft", count_include_pad=counts, **window
    )
    proto = onnx_build.model(
        [pool],
        [onnx_build.value("x", dims, TensorProto.UINT8)],
        [onnx_build.value("y", None, TensorProto.UINT8)],
        {name: np.array(number) for name, number in values.items()},
        domains=[("com.microsoft", 1)],
    )
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    feed = {"x": np.random.default_rng(3).integers(0, 255, (1, 7, 6, 2), dtype=np.uint8)}
    with load(tmp_path / "m.hcb") as session:
        found = session.run(feed)["y"].astype(int)
    assert np.abs(found - reference_session(proto).run(None, feed)[0]).max() <= 1
