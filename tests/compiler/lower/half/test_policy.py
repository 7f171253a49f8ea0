"""The values that may be rounded to float16, and verdicts on rounded results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.checking.judge import Judge
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.half.policy import fits, rounded_values
from tests.compiler.small import conv_net, save


@pytest.mark.parametrize(
    ("weight", "right"),
    [
        ([1.0, -2.0, 3e-3], True),
        ([0.0, 0.0], True),
        ([], True),
        ([-np.inf, 1.0], True),
        ([65504.0], True),
        ([65536.0, 1.0], False),
        ([-3.4e38], False),
        ([1e-8, 3e-8], False),
        ([1e-8, 1.0], True),
    ],
)
def test_a_weight_is_stored_as_half_if_it_neither_overflows_nor_vanishes(weight: list[float], right: bool) -> None:
    assert fits(np.array(weight, np.float32)) is right


def test_what_decides_and_what_may_overflow_is_not_rounded(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
        helper.make_node("Exp", ["a"], ["b"], name="exp"),
        helper.make_node("Add", ["b", "w"], ["c"], name="add"),
        helper.make_node("Floor", ["c"], ["y"], name="floor"),
    ]
    constants = {"w": np.ones((4, 64), np.float32)}
    model = import_model(save(tmp_path / "m.onnx", nodes, {"x": [4, 64]}, {"y": [4, 64]}, constants))
    values, weights = rounded_values(model, [n.name for n in model.graph.nodes])
    assert values == {"a", "y"} and weights == {"w"}


@pytest.fixture
def model(tmp_path: Path) -> ImportedModel:
    return import_model(conv_net(tmp_path / "m.onnx"))


def judged(model: ImportedModel, change: np.ndarray | float, half: bool = True) -> str | None:
    feed = {"x": np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    value = Reference(model, ["y"]).run(feed)["y"]
    nodes = [n.name for n in model.graph.nodes] if half else []
    return Judge(model, feed, ["y"], half=nodes).compare("y", (value + change).astype(np.float32), value).reason


def test_half_precision_is_judged_by_what_rounding_explains(model: ImportedModel) -> None:
    assert judged(model, 1e-3) is None
    assert "elements differ" in (judged(model, 1e-3, half=False) or "")
    assert "elements differ" in (judged(model, 0.1) or "")
    assert "float16 ends at 65504" in (judged(model, np.inf) or "")
    assert "instead of" in (judged(model, np.nan) or "")


def test_the_rounding_reference_rounds_only_the_given_values(model: ImportedModel) -> None:
    feed = {"x": np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    plain = Reference(model, ["b", "y"]).run(feed)
    some = Reference(model, ["b", "y"], half=["relu1"]).run(feed)
    np.testing.assert_array_equal(some["b"], plain["b"].astype(np.float16).astype(np.float32))
    assert 0 < np.abs(some["y"] - plain["y"]).max() < 1e-2
    other = Reference(model, ["b", "y"], half=["relu1"]).run(feed, 1.41)
    assert (other["b"] != some["b"]).any()
    np.testing.assert_allclose(other["b"], plain["b"], rtol=2**-11)


def test_a_value_beyond_float16_is_not_rounded_by_the_reference(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"], name="square")]
    model = import_model(save(tmp_path / "m.onnx", nodes, {"x": [3]}, {"y": [3]}))
    feed = {"x": np.array([1e3, 2.5, np.inf], np.float32)}
    for scale in (1.0, 1.68):
        found = Reference(model, ["y"], half=["square"]).run(feed, scale)["y"]
        np.testing.assert_allclose(found, [1e6, 6.25, np.inf], rtol=2**-11)


def test_either_result_of_a_comparison_that_rounding_turns_over_is_right(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("ArgMax", ["a"], ["i"], name="best", axis=1, keepdims=1),
        helper.make_node("Cast", ["i"], ["y"], name="cast", to=1),
    ]
    # The second column is larger by less than the resolution of float16, the last is smaller.
    constants = {"w": np.array([[1.0, 1.0001, 0.5]], np.float32)}
    model = import_model(save(tmp_path / "m.onnx", nodes, {"x": [1, 1]}, {"y": [1, 1]}, constants))
    feed = {"x": np.array([[3.0]], np.float32)}
    value = Reference(model, ["i"]).run(feed)["i"]
    assert value.tolist() == [[1]]
    judge = Judge(model, feed, ["i"], half=["product", "best"])
    assert [judge.compare("i", np.array([[k]]), value).ok for k in range(3)] == [True, True, False]
