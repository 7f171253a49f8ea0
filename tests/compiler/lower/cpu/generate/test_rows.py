"""Generated softmax, normalisations and their like against numpy in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.lower.cpu.generate.generated import ARM, Generated, runnable, target_of
from tests.few_examples import few

node = helper.make_node
RNG = np.random.default_rng(22)
CPUS = st.sampled_from(runnable())
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 31, 33, 50, 64, 91, 100, 130, 197]))


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """e^x / Σ e^x in float64."""
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """The logarithm of softmax, in float64."""
    wide = x.astype(np.float64)
    shifted = wide - wide.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))


KINDS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {"Softmax": softmax, "LogSoftmax": log_softmax}


@given(CPUS, st.sampled_from(sorted(KINDS)), st.lists(SIZES, min_size=1, max_size=4), st.data())
@few(48, deadline=None)
def test_softmax_along_any_axis_agrees(cpu: str, kind: str, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    assume(shape[axis] > 1 and np.prod(shape) < 200_000)
    x = (4 * RNG.standard_normal(shape)).astype(np.float32)
    kernel = Generated([node(kind, ["x"], ["y"], axis=axis)], {"x": x}, {}, target_of(cpu))
    right = KINDS[kind](x, axis)
    if kernel.done is None:  # fewer neighbours than a vector has
        inner = [n for n in shape[axis + 1 :] if n > 1]
        assert inner and np.prod(inner) < 4, (shape, axis)
        return
    np.testing.assert_allclose(kernel.run(), right, rtol=3e-6, atol=3e-6 if kind == "LogSoftmax" else 1e-7)


def test_rows_of_minus_infinity_and_nan_are_as_in_the_definition() -> None:
    x = RNG.standard_normal((6, 37)).astype(np.float32)
    x[1], x[2, 30], x[3, 2], x[4, 3:] = -np.inf, np.nan, np.nan, -np.inf
    found = Generated([node("Softmax", ["x"], ["y"], axis=1)], {"x": x}, {}, target_of(runnable()[0])).run()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, softmax(x, 1), rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("axis", [1, 2])
def test_code_for_arm_is_built(axis: int) -> None:
    x = RNG.random((7, 45, 19), np.float32)
    assert Generated([node("Softmax", ["x"], ["y"], axis=axis)], {"x": x}, {}, ARM).code() is not None
