"""Places and sizes at the limits of integers: ONNX Runtime's result, or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from heterocc.artifacts.errors import InputError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.symbolic_models import dynamic_model

LEAST, MOST = -(2**63), 2**63 - 1
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def check(path: Path, op_type: str, given: Mapping[str, Sequence[np.ndarray]], **attributes: object) -> None:
    """Requests of the data and of each of the given values, of which the first are right, end as in ONNX Runtime."""
    node = helper.make_node(op_type, ["x", *given], ["y"], **attributes)
    inputs = {"x": ("float32", ("n", "m"))} | {k: (str(v[0].dtype), v[0].shape) for k, v in given.items()}
    model = dynamic_model([node], inputs, ["y"], {})
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    compile_model(model, path / "m.hcb", devices="CPU", check=False, cpu_variant=False)
    with load(path / "m.hcb") as session:
        for values in zip(*given.values(), strict=True):
            feed = {"x": X, **dict(zip(given, values, strict=True))}
            try:
                (wanted,) = reference.run(None, feed)
            except Exception:
                with pytest.raises(InputError):
                    session.run(feed)
            else:
                np.testing.assert_array_equal(session.run(feed)["y"], wanted, str(values))


def vectors(*numbers: int) -> list[np.ndarray]:
    return [np.array([number]) for number in numbers]


def test_a_slice_backwards_without_an_end_goes_to_the_first_element(tmp_path: Path) -> None:
    ends = (0, MOST, 2**31 - 1, MOST - 1, LEAST, MOST, MOST)
    steps = (-1, -1, -2, -1, -1, LEAST, 2)
    check(
        tmp_path,
        "Slice",
        {"starts": vectors(*[2] * 7), "ends": vectors(*ends), "axes": vectors(*[0] * 7), "steps": vectors(*steps)},
    )


@pytest.mark.parametrize("end", [MOST, 2**31 - 1])
def test_a_constant_end_of_a_slice_backwards_is_the_first_element_too(tmp_path: Path, end: int) -> None:
    node = helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])
    constants = {"starts": [-1], "ends": [end], "axes": [1], "steps": [-2]}
    arrays = {name: np.array(numbers) for name, numbers in constants.items()}
    compile_model(
        dynamic_model([node], {"x": ("float32", ("n", "m"))}, ["y"], arrays), tmp_path / "m.hcb", devices="CPU"
    )
    with load(tmp_path / "m.hcb") as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], X[:, ::-2])


def test_a_diagonal_of_a_trilu_may_be_any_integer(tmp_path: Path) -> None:
    check(tmp_path, "Trilu", {"k": [np.array(k) for k in (1, MOST, MOST - 1, LEAST, -2)]})


def test_a_reflection_of_computed_length_is_shorter_than_the_data(tmp_path: Path) -> None:
    pads = [[1, 0, 1, 0], [2, 0, 0, 3], [3, 0, 0, 0], [0, 0, 0, 4], [-1, 0, 2, 0], [-1, 0, 1, 0], [-3, 0, 0, 0]]
    check(tmp_path, "Pad", {"pads": [np.array(p) for p in pads]}, mode="reflect")


def test_a_region_of_too_many_points_is_an_error(tmp_path: Path) -> None:
    region = helper.make_node("RoiAlign", ["image", "rois", "batch"], ["y"], output_height=2, output_width=2)
    inputs = {"image": ("float32", (1, 1, "h", "w")), "rois": ("float32", ("n", 4)), "batch": ("int64", ("n",))}
    compile_model(dynamic_model([region], inputs, ["y"], {}), tmp_path / "m.hcb", devices="CPU", check=False)
    with load(tmp_path / "m.hcb") as session, pytest.raises(InputError):
        rois = np.array([[-1e9, -1e9, 1e9, 1e9]], np.float32)
        session.run({"image": np.ones((1, 1, 4, 4), np.float32), "rois": rois, "batch": np.array([0])})


def test_an_expand_to_no_elements_takes_no_time_for_its_other_sizes(tmp_path: Path) -> None:
    model = dynamic_model(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        {"x": ("float32", ("n", 1)), "shape": ("int64", (3,))},
        ["y"],
        {},
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", check=False, cpu_variant=False)
    x = np.ones((3, 1), np.float32)
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": x, "shape": np.array([2, 3, 0])})["y"].shape == (2, 3, 0)
        with pytest.raises(InputError, match="no elements"):
            session.run({"x": x, "shape": np.array([2**33, 3, 0])})
