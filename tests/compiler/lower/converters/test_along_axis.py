"""Kernels of CPUs that follow an axis: ArgMax and ArgMin, running sums; casts to integers; Tile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import load


class Model:
    """A model of many nodes, each with an input and an expected output of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.constants: list[onnx.TensorProto] = []
        self.expected: dict[str, np.ndarray] = {}

    def add(self, kind: str, array: np.ndarray, right: np.ndarray, *lists: Any, **attributes: Any) -> None:
        number = len(self.nodes)
        self.inputs[f"x{number}"], self.expected[f"y{number}"] = array, right
        names = [f"c{number}_{place}" for place in range(len(lists))]
        self.constants += [numpy_helper.from_array(np.array(c, np.int64), n) for n, c in zip(names, lists, strict=True)]
        self.nodes.append(helper.make_node(kind, [f"x{number}", *names], [f"y{number}"], **attributes))

    def check(self, folder: Path) -> None:
        def infos(arrays: dict[str, np.ndarray]) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in arrays.items()
            ]

        graph = helper.make_graph(self.nodes, "g", infos(self.inputs), infos(self.expected), self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        compile_model(model, folder / "m.hcb", devices="CPU")
        with load(folder / "m.hcb", threads=2) as session:
            found = session.run(self.inputs)
        for number, name in enumerate(self.expected):
            np.testing.assert_array_equal(found[name], self.expected[name], str(self.nodes[number]))


def extreme(x: np.ndarray, axis: int, largest: bool, last: bool) -> np.ndarray:
    x = np.where(np.isnan(x), -np.inf if largest else np.inf, x)
    find = np.argmax if largest else np.argmin
    return x.shape[axis] - 1 - find(np.flip(x, axis), axis) if last else find(x, axis)


def check_extremes(places: Sequence[tuple[tuple[int, ...], int]], folder: Path) -> None:
    model, random = Model(), np.random.default_rng(0)
    for number, (shape, axis) in enumerate(places):
        x = random.integers(-4, 5, shape).astype(np.float32)
        largest, last, keepdims = bool(number % 3), bool(number % 2), number % 4 < 2
        if last:
            x.flat[-1], x.flat[x.size // 2] = np.nan, np.inf
        right = extreme(x, axis, largest, last)
        right = np.expand_dims(right, axis) if keepdims else right
        kind = "ArgMax" if largest else "ArgMin"
        model.add(kind, x, right, axis=axis, keepdims=int(keepdims), select_last_index=int(last))
    model.check(folder)


def check_sums(places: Sequence[tuple[tuple[int, ...], int]], folder: Path) -> None:
    model, random = Model(), np.random.default_rng(1)
    for number, (shape, axis) in enumerate(places):
        exclusive, reverse, dtype = number % 2, number // 2 % 2, np.float32 if number % 3 else np.int64
        x = random.integers(-4, 5, shape).astype(dtype)
        turned = np.flip(x, axis) if reverse else x
        sums = np.cumsum(turned, axis, dtype=dtype) - (turned if exclusive else 0)
        right = np.flip(sums, axis) if reverse else sums
        model.add("CumSum", x, right.astype(dtype), axis, exclusive=exclusive, reverse=reverse)
    model.check(folder)


def test_the_place_of_an_extreme_is_that_of_numpy_with_ties_and_nan(tmp_path: Path) -> None:
    check_extremes([((7, 70), 1), ((7, 70), 0), ((2, 5, 3), 1)], tmp_path)


@pytest.mark.slow
def test_the_place_of_an_extreme_is_that_of_numpy_for_every_axis(tmp_path: Path) -> None:
    shapes = ((64, 1040), (7, 1000), (3, 16), (2, 3, 5), (2, 70, 3, 19))
    check_extremes([(shape, axis) for shape in shapes for axis in range(len(shape)) for _ in range(3)], tmp_path)


def test_nan_is_an_extreme_only_as_the_first_element(tmp_path: Path) -> None:
    model = Model()
    for width in (3, 20):
        x = np.full((2, width), np.nan, np.float32)
        x[0, 1:3] = 3, np.inf
        for last in range(2):  # a NaN that comes first wins, even over an infinity after it
            model.add("ArgMax", x, np.array([0, 0]), axis=1, keepdims=0, select_last_index=last)
    model.add("ArgMin", x.T.copy(), np.array([0, 0]), axis=0, keepdims=0)
    model.check(tmp_path)


def test_a_denormal_number_is_larger_than_zero(tmp_path: Path) -> None:
    model, x = Model(), np.zeros((3, 20), np.float32)
    x[:, 2] = 1e-40
    model.add("ArgMax", x, np.array([2, 2, 2]), axis=1, keepdims=0)
    model.add("ArgMax", x.T.copy(), np.array([2, 2, 2]), axis=0, keepdims=0)
    model.check(tmp_path)


def test_running_sums_are_those_of_numpy(tmp_path: Path) -> None:
    check_sums([((5, 7, 3), 1), ((64, 100), 0), ((4, 2053), 0), ((2, 3, 2053), 1), ((3, 40), 1)], tmp_path)


@pytest.mark.slow
def test_running_sums_are_those_of_numpy_for_every_axis(tmp_path: Path) -> None:
    shapes = ((64, 1040), (5, 7, 3), (2, 16, 40), (300, 2, 9))
    check_sums([(shape, axis) for shape in shapes for axis in range(len(shape)) for _ in range(4)], tmp_path)


def test_repetitions_of_short_rows_are_those_of_numpy_in_every_type(tmp_path: Path) -> None:
    model = Model()
    for shape, times in (((5, 3), (4, 30)), ((3, 17), (4, 3)), ((2, 3, 2), (3, 2, 5)), ((33,), (3,))):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        model.add("Tile", x, np.tile(x, times), times)
    for dtype in (np.int64, np.int16, np.uint8, np.bool_):
        x = (np.arange(66) % 5).astype(dtype).reshape(2, 1, 33)
        model.add("Tile", x, np.tile(x, (2, 5, 2)), (2, 5, 2))
    model.check(tmp_path)


def test_casts_to_integers_round_towards_zero_and_define_numbers_out_of_range(tmp_path: Path) -> None:
    inside = np.array([0.5, -0.5, 1.9, -1.9, 2147483520, -2147483648, 255.7, -3.2, 0, -0.0, 7] * 3, np.float32)
    beyond = np.array([3e9, -3e9, np.nan, np.inf, -np.inf] * 4, np.float32)
    model = Model()
    for dtype in (np.int32, np.uint8, np.int64):
        to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        model.add("Cast", inside, inside.astype(np.int64).astype(dtype), to=to)
    model.add("Cast", beyond, np.full(beyond.shape, np.iinfo(np.int32).min, np.int32), to=onnx.TensorProto.INT32)
    model.check(tmp_path)


def test_tiles_are_those_of_numpy(tmp_path: Path) -> None:
    model, random = Model(), np.random.default_rng(2)
    for shape, times in (((33, 17), (4, 3)), ((2, 1, 9), (1, 3, 1))):
        x = random.standard_normal(shape).astype(np.float32)
        model.add("Tile", x, np.tile(x, times), times)
    model.check(tmp_path)
