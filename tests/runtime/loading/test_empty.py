"""Requests in which a dimension is 0 and every result is empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import FeedError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from heterocc.runtime.loading import empty
from tests.compiler.onnx_build import noise
from tests.compiler.small import save
from tests.reference import reference_session


def test_a_request_is_answered_without_elements_only_if_each_result_has_none(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[0, 1, 0, 0]),
        helper.make_node("Add", ["c", "bias"], ["y"]),
        helper.make_node("ReduceSum", ["c", "last"], ["z"], keepdims=0),
    ]
    weights = {"w": noise(2, 3, 3, 3), "last": np.array([3], np.int64)}
    shapes = {"x": ("n", 3, "high", "wide"), "bias": ("n", 1, 1, 1)}
    save(path, nodes, shapes, {"y": None, "z": None}, weights)  # type: ignore[arg-type]
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    reference = reference_session(path)
    with load(tmp_path / "m.hcb") as session:
        feed = {"x": noise(0, 3, 9, 6), "bias": noise(0, 1, 1, 1)}
        for found, wanted in zip(session.run(feed).values(), reference.run(None, feed), strict=True):
            assert found.shape == wanted.shape and found.dtype == wanted.dtype
        assert [found.shape for found in session.run(["z"], feed)] == [(0, 2, 4)]
        assert session.run({"x": noise(2, 3, 9, 6), "bias": noise(2, 1, 1, 1)})["z"].shape == (2, 2, 4)
        with pytest.raises(FeedError, match="'n' of input 'x' must be 1 or more"):
            session.run({**feed, "x": noise(0, 3, 1, 6)})  # the window needs a height of 2
        with pytest.raises(FeedError, match="dtype"):
            session.run({**feed, "x": np.zeros((0, 3, 9, 6))})


def test_sizes_that_do_not_agree_are_refused_also_without_elements_and_0_is_a_multiple(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Reshape", ["p", "rows"], ["y"])]
    shapes = {"x": ("n", "k"), "w": ("m", 4)}
    save(path, nodes, shapes, {"y": None}, {"rows": np.array([-1, 3, 4])})  # type: ignore[arg-type]
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": noise(6, 5), "w": noise(5, 4)})["y"].shape == (2, 3, 4)
        assert session.run({"x": noise(0, 5), "w": noise(5, 4)})["y"].shape == (0, 3, 4)
        for x, w in (((0, 3), (5, 4)), ((0, 0), (5, 4)), ((0, 5), (0, 4)), ((2, 5), (5, 4))):
            with pytest.raises(FeedError):
                session.run({"x": noise(*x), "w": noise(*w)})


def test_a_sum_of_nothing_is_not_an_empty_result(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("ReduceSum", ["e"], ["y"], keepdims=0)]
    save(path, nodes, {"x": ("n", 4)}, {"e": None, "y": None})  # type: ignore[arg-type, dict-item]
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    with load(tmp_path / "m.hcb") as session, pytest.raises(FeedError, match="'n' of input 'x' must be 1 or more"):
        session.run({"x": noise(0, 4)})


@pytest.mark.parametrize(
    ("dim", "size"),
    [
        (7, 7),
        ("n", 0),
        ("two words", 5),
        ("-(n - 3*m)//2", 4),
        ("min(m, 2) + max(n, 1)", 3),
        (None, None),
        ("k", None),
        ("n.real", None),
        ("m//n", None),
        ("min(m)", None),
        ("open('f', 'w')", None),
        ("(" * 3000, None),
    ],
)
def test_a_dimension_of_a_result_is_a_number_a_name_or_an_expression_of_names(
    dim: int | str | None, size: int | None
) -> None:
    assert empty._size(dim, {"n": 0, "m": 3, "two words": 5}) == size
