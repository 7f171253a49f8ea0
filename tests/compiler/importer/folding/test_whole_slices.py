"""Removal of slices that take all of their input, by the import."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import (
    assert_close,
    model,
    node,
    noise,
    op_types,
    run_imported,
    run_original,
    save,
    value,
)

LARGEST = 2**63 - 1
WHOLE = {
    "a dynamic axis": ([0], [LARGEST], [0], [1]),
    "several axes": ([0, 0, 0], [LARGEST, 5, 2**31 - 1], [0, 1, -1], [1, 1, 1]),
    "from before the beginning": ([-LARGEST], [LARGEST], [2], [1]),
    "an axis of known size, from the back": ([-5], [7], [1], [1]),
    "no axes named": ([0, 0], [LARGEST, 9], None, None),
}
PARTS = {
    "without the first": ([1], [LARGEST], [0], [1]),
    "without the last": ([0], [-1], [0], [1]),
    "every second": ([0], [LARGEST], [1], [2]),
    "backwards": ([LARGEST], [-LARGEST], [1], [-1]),
    "an end that may be inside": ([0], [3], [0], [1]),
    "a start that may be inside": ([-3], [LARGEST], [0], [1]),
}


def _sliced(starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None) -> onnx.ModelProto:
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    constants = {name: np.array(numbers, np.int64) for name, numbers in given.items() if numbers is not None}
    nodes = [node("Relu", "x", "r"), node("Slice", " ".join(["r", *constants]), "s"), node("Neg", "s", "y")]
    return model(nodes, [value("x", ["n", 5, "k"])], [value("y")], constants, opset=13)


@pytest.mark.parametrize("sliced", [pytest.param(v, id=k) for k, v in WHOLE.items()])
def test_a_slice_of_all_is_removed(sliced: tuple[list[int], list[int], list[int], list[int]]) -> None:
    assert op_types(import_model(_sliced(*sliced), keep_dims=True)) == ["Relu", "Neg"]


@pytest.mark.parametrize("sliced", [pytest.param(v, id=k) for k, v in PARTS.items()])
def test_a_slice_of_a_part_stays(sliced: tuple[list[int], list[int], list[int], list[int]]) -> None:
    assert "Slice" in op_types(import_model(_sliced(*sliced), keep_dims=True))


def test_a_slice_of_all_in_an_old_model_is_removed() -> None:
    nodes = [node("Relu", "x", "r"), node("Slice", "r", "s", starts=[0], ends=[LARGEST]), node("Neg", "s", "y")]
    old = model(nodes, [value("x", ["n", 5])], [value("y")], {}, opset=9)
    assert op_types(import_model(old, keep_dims=True)) == ["Relu", "Neg"]


def test_a_slice_of_all_may_be_an_output(tmp_path: Path) -> None:
    constants = {"s": np.array([0]), "e": np.array([LARGEST])}
    proto = model([node("Relu", "x", "r"), node("Slice", "r s e", "y")], [value("x", [3, 4])], [value("y"), value("r")],
                  constants, opset=13)  # fmt: skip
    path, feed = save(tmp_path, proto), {"x": noise(3, 4)}
    assert_close(run_imported(import_model(path), feed), run_original(path, feed))
