"""Parts of values that are read where they lie."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.lower.cpu.lowering import CpuLowering
from tests.compiler.lower.cpu.concatenations.test_in_place import floats, kernels_of
from tests.compiler.lower.lowered import assert_same, execute, job, model, run_ort

node = helper.make_node


def test_a_value_that_is_split_and_joined_again_is_never_copied() -> None:
    weights = {"w": floats(10, 3, 1, 1), "v": floats(5, 5, 3, 3), "u": floats(4, 15, 1, 1)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Split", ["a"], ["b", "c"], axis=1, num_outputs=2, name="split"),
        node("Conv", ["c", "v"], ["d"], pads=[1] * 4, name="d"),
        node("Concat", ["b", "c", "d"], ["e"], axis=1, name="e"),
        node("Conv", ["e", "u"], ["y"], name="y"),
        node("MaxPool", ["c"], ["z"], kernel_shape=[2, 2], name="z"),
    ]
    first, _ = kernels_of(nodes, {"x": floats(1, 3, 7, 9)}, ["y", "z"], weights)
    assert sorted(first) == ["a", "d", "y", "z"]


def test_a_part_stays_while_what_it_is_a_part_of_is_not_read_any_more() -> None:
    weights = {"w": floats(9, 9, 1, 1), "v": floats(3, 3, 3, 3), "s": np.array([4, 3, 2])}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Split", ["a", "s"], ["b", "c", "d"], axis=1, name="split"),
        *(node("Conv", ["c" if n == 0 else f"c{n}", "v"], [f"c{n + 1}"], pads=[1] * 4, name=f"c{n}") for n in range(4)),
        node("MaxPool", ["b"], ["y"], kernel_shape=[2, 2], name="y"),
        node("AveragePool", ["d"], ["z"], kernel_shape=[2, 2], name="z"),
    ]
    first, _ = kernels_of(nodes, {"x": floats(1, 9, 6, 11)}, ["y", "z", "c4"], weights)
    assert sorted(first) == ["a", "c0", "c1", "c2", "c3", "y", "z"]


@pytest.mark.parametrize("shape", [(1, 6, 5, 8), (6, 5, 8)])
def test_parts_of_an_input_and_parts_in_another_shape_are_views(shape: tuple[int, ...]) -> None:
    axis = len(shape) - 3
    weights = {"first": np.array([2]), "end": np.array([5]), "axis": np.array([axis]), "t": np.array([15, 8])}
    nodes = [
        node("Slice", ["x", "first", "end", "axis"], ["a"], name="a"),
        node("Reshape", ["a", "t"], ["b"], name="b"),
        node("Softmax", ["b"], ["y"], axis=-1, name="y"),
        node("Softmax", ["a"], ["z"], axis=-1, name="z"),
    ]
    x = floats(*shape)
    made = model(nodes, {"x": x}, ["y", "z"], weights)
    work = job(made)
    lowered = CpuLowering().lower(work)
    assert_same(execute(work, lowered, {"x": x}), run_ort(made, {"x": x}))
    assert sorted(kernel.nodes for kernel in lowered.kernels) == [("y", "a"), ("z",)]


def test_a_part_of_a_part_begins_where_both_do() -> None:
    weights = {"w": floats(8, 8, 1, 1), "v": floats(2, 2, 1, 1)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Split", ["a"], ["b", "c"], axis=1, num_outputs=2, name="split"),
        node("Split", ["c"], ["d", "e"], axis=1, num_outputs=2, name="again"),
        node("Conv", ["e", "v"], ["y"], name="y"),
        node("Conv", ["d", "v"], ["z"], name="z"),
        node("MaxPool", ["b"], ["p"], kernel_shape=[2, 2], name="p"),
    ]
    first, _ = kernels_of(nodes, {"x": floats(1, 8, 3, 5)}, ["y", "z", "p"], weights)
    assert sorted(first) == ["a", "p", "y", "z"]


@pytest.mark.parametrize(
    ("shape", "axis", "step", "outputs"),
    [
        ((2, 4, 6, 5), 1, 1, ["y"]),
        ((1, 4, 6, 5), 2, 1, ["y"]),
        ((1, 4, 6, 5), 1, 2, ["y"]),
        ((1, 4, 6, 5), 1, 1, ["y", "b"]),
    ],
    ids=["a batch", "rows", "every second", "an output"],
)
def test_what_is_not_in_one_piece_is_copied(shape: tuple[int, ...], axis: int, step: int, outputs: list[str]) -> None:
    weights = {n: np.array([v]) for n, v in (("first", 1), ("end", 4), ("axis", axis), ("step", step))}
    nodes = [
        node("MaxPool", ["x"], ["a"], kernel_shape=[1, 1], name="a"),
        node("Slice", ["a", "first", "end", "axis", "step"], ["b"], name="b"),
        node("MaxPool", ["b"], ["y"], kernel_shape=[2, 2], name="y"),
    ]
    first, _ = kernels_of(nodes, {"x": floats(*shape)}, outputs, weights)
    assert first == ["a", "b", "y"]


def test_one_part_of_several_is_copied_into_a_concatenation() -> None:
    numbers = {n: np.array([v]) for n, v in (("first", 2), ("end", 4), ("axis", 1))}
    weights = {"w": floats(4, 3, 1, 1), "v": floats(3, 4, 1, 1), "u": floats(2, 5, 1, 1), **numbers}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Slice", ["a", "first", "end", "axis"], ["b"], name="b"),
        node("Conv", ["a", "v"], ["c"], name="c"),
        node("Concat", ["b", "c"], ["d"], axis=1, name="d"),
        node("Conv", ["d", "u"], ["y"], name="y"),
    ]
    first, last = kernels_of(nodes, {"x": floats(1, 3, 7, 9)}, ["y"], weights)
    assert sorted(first) == ["a", "b", "c", "y"] and "d" in last
