"""Verdicts on quantised and narrow values: the tensor as a whole, within the effects of rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.checking.compare import Tolerance
from heterocc.compiler.checking.judge import Judge, coarse_values, step_of
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.small import save

STEP = np.float32(0.05)
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> ImportedModel:
    """plain = relu(x); y = x rounded to 8 bits."""
    nodes = [
        helper.make_node("Relu", ["x"], ["plain"], name="relu"),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="back"),
    ]
    constants = {"s": STEP, "z": np.array(0, np.int8)}
    path = save(tmp_path / "m.onnx", nodes, {"x": [4, 64]}, {"plain": [4, 64], "y": [4, 64]}, constants)
    return import_model(path)


def verdict(model: ImportedModel, name: str, change: np.ndarray) -> bool:
    feed = {"x": X}
    value = Reference(model, [name]).run(feed)[name]
    return Judge(model, feed, [name]).compare(name, value + change, value).ok


def one() -> np.ndarray:
    change = np.zeros_like(X)
    change[0, 0] = STEP
    return change


def test_what_follows_a_quantiser_is_coarse(model: ImportedModel) -> None:
    assert {"q", "y"} <= coarse_values(model)
    assert "plain" not in coarse_values(model)


def test_one_element_a_step_off_is_right_behind_a_quantiser_only(model: ImportedModel) -> None:
    assert verdict(model, "y", one())
    assert not verdict(model, "plain", one())


@pytest.mark.parametrize(("steps", "right"), [(1, True), (2, False)])
def test_one_step_is_right_however_small_the_other_elements_are(tmp_path: Path, steps: int, right: bool) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="back"),
        helper.make_node("Transpose", ["d"], ["y"], name="turn", perm=[1, 0]),
    ]
    constants = {"s": STEP, "z": np.array(0, np.int8)}
    model = import_model(save(tmp_path / "m.onnx", nodes, {"x": [4, 64]}, {"y": [64, 4]}, constants))
    value = np.zeros((64, 4), np.float32)
    value[0, 0] = STEP
    change = np.zeros_like(value)
    change[3, 1] = steps * STEP
    assert step_of(model, "y") == STEP and step_of(model, "q") == 0
    assert Judge(model, {"x": value.T}, ["y"]).compare("y", value + change, value).ok == right


def test_every_element_two_steps_off_is_wrong(model: ImportedModel) -> None:
    assert not verdict(model, "y", np.full_like(X, 2 * STEP))


def test_a_shaken_reference_is_near_the_plain_one_and_the_same_every_time(model: ImportedModel) -> None:
    plain = Reference(model, ["plain"]).run({"x": X})["plain"]
    first, second = (Reference(model, ["plain"], shaken=True).run({"x": X})["plain"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, plain, rtol=1e-5)
    assert (first != plain).any()


def test_a_value_that_rounding_alone_turns_over_is_judged_by_that(tmp_path: Path) -> None:
    # A huge gain before the quantiser: the last bit of the input decides over whole steps of the output.
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["a"], name="gain"),
        helper.make_node("Sin", ["a"], ["b"], name="sin"),
        helper.make_node("QuantizeLinear", ["b", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="back"),
    ]
    constants = {"gain": np.array(1e6, np.float32), "s": STEP, "z": np.array(0, np.int8)}
    model = import_model(save(tmp_path / "m.onnx", nodes, {"x": [4, 64]}, {"y": [4, 64]}, constants))
    value = Reference(model, ["y"]).run({"x": X})["y"]
    judge = Judge(model, {"x": X}, ["y"])
    noise = np.random.default_rng(1).standard_normal(value.shape).astype(np.float32)
    assert judge.least_snr("y", value) < 20
    assert judge.compare("y", value + STEP * noise, value).ok
    assert not judge.compare("y", value + 10 * noise, value).ok


def test_a_scalar_input_stays_a_scalar(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sqrt", ["x"], ["y"], name="root")]
    model = import_model(save(tmp_path / "m.onnx", nodes, {"x": []}, {"y": []}))
    assert Reference(model, ["y"]).run({"x": np.array(4, np.float32)})["y"].shape == ()


@pytest.mark.parametrize(("change", "right"), [({}, True), ({9: np.nan, 8: np.inf}, True), ({1: 2.0}, False)])
def test_where_the_sums_of_a_layer_overflow_only_elements_that_are_no_numbers_are_left_out(
    tmp_path: Path, change: dict[int, float], right: bool
) -> None:
    layer = helper.make_node("RNN", ["x", "w", "r"], ["y"], name="layer", hidden_size=1, activations=["Relu"])
    weights = {"w": np.ones((1, 1, 1), np.float32), "r": np.full((1, 1, 1), 1e6, np.float32)}
    path = save(tmp_path / "m.onnx", [layer], {"x": [10, 1, 1]}, {"y": [10, 1, 1, 1]}, weights)
    model = import_model(path)
    feed = {"x": np.ones((10, 1, 1), np.float32)}
    (y,) = Reference(model, ["y"]).run(feed).values()
    assert not np.isfinite(y[-1]).all()
    got = y.copy()
    for step, number in change.items():
        got[step] = number
    # The tolerance of a tensor follows from its largest element.
    assert Judge(model, feed, ["y"], base=Tolerance(scale=0.0)).compare("y", got, y).ok is right
