"""Generated sums, products, maxima and minima against numpy in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper

from heterocc.compiler.lower.cpu.generate.rows import rows
from tests.compiler.lower.cpu.generate.generated import ARM, Generated, runnable, target_of
from tests.few_examples import few

node = helper.make_node
RNG = np.random.default_rng(21)
CPUS = st.sampled_from(runnable())
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 31, 33, 64, 77, 130]))
KINDS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
}


def with_first(found: np.ndarray, x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """The extremes of the numbers in `x`, NaN where its first term is (decision 7)."""
    first = x[tuple(slice(0, 1) if d in axes else slice(None) for d in range(x.ndim))]
    return np.where(np.isnan(first.reshape(found.shape)), np.nan, found)


def numbers(kind: str, shape: Sequence[int], terms: int) -> np.ndarray:
    """What is reduced; for a product numbers near one, so that it neither overflows nor vanishes."""
    x = RNG.standard_normal(shape).astype(np.float32)
    return np.copysign(np.exp(np.abs(x) / terms), x) if kind == "ReduceProd" else x


@given(CPUS, st.sampled_from(sorted(KINDS)), st.lists(SIZES, min_size=1, max_size=4), st.booleans(), st.data())
@few(24, deadline=None)
def test_reductions_over_any_axes_agree(cpu: str, kind: str, shape: list[int], kept: bool, data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    terms = int(np.prod([shape[a] for a in axes]))
    assume(terms > 1)
    assume(len(axes) < len(shape))  # a result without dimensions is several kernels
    x = numbers(kind, shape, terms)
    rule = KINDS[kind]
    if rule in (np.max, np.min) and data.draw(st.booleans()):
        x[RNG.random(shape) < 0.3] = np.nan
        rule = np.fmax.reduce if rule is np.max else np.fmin.reduce
    axis = np.array(sorted(axes), np.int64)
    nodes = [node(kind, ["x", "a"], ["r"], keepdims=int(kept))]
    kernel = Generated(nodes, {"x": x}, {"a": axis}, target_of(cpu))
    wide = x.astype(np.float64)
    right = rule(wide, axis=tuple(axes), keepdims=kept)
    right = right if rule is KINDS[kind] else with_first(right, x, list(axes))
    if kernel.done is None:  # no row of neighbours
        places = [n for d, n in enumerate(shape) if d not in axes and n > 1]
        assert shape[-1] < 4 and places, (shape, axes)
        return
    scale = np.nansum(np.abs(wide), tuple(axes), keepdims=kept).max() + 1
    np.testing.assert_allclose(
        kernel.run().reshape(right.shape), right, rtol=max(1e-5, 6e-8 * terms), atol=3e-7 * scale
    )


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(("shape", "axis"), [((9, 8), 1), ((8, 40), 0), ((5, 3, 20), 1)])
def test_an_extreme_of_few_terms_whose_first_is_nan_is_nan(kind: str, shape: tuple[int, ...], axis: int) -> None:
    """They were taken for a window of pooling, in which a NaN is left out."""
    x = RNG.standard_normal(shape).astype(np.float32)
    x[RNG.random(shape) < 0.3] = np.nan
    attribute = np.array([axis], np.int64)
    kernel = Generated([node(kind, ["x", "a"], ["r"])], {"x": x}, {"a": attribute}, target_of(runnable()[0]))
    extreme = np.fmax if kind == "ReduceMax" else np.fmin
    np.testing.assert_array_equal(kernel.run(), with_first(extreme.reduce(x, axis=axis, keepdims=True), x, [axis]))


@pytest.mark.parametrize("axis", [1, 2])
def test_what_follows_a_sum_is_computed_as_it_is_stored(axis: int) -> None:
    x = RNG.standard_normal((3, 21, 35)).astype(np.float32)
    nodes = [node("ReduceMean", ["x", "a"], ["m"]), node("Sigmoid", ["m"], ["s"]), node("Mul", ["m", "s"], ["y"])]
    kernel = Generated(nodes, {"x": x}, {"a": np.array([axis])}, target_of(runnable()[0]))
    m = x.astype(np.float64).mean(axis, keepdims=True)
    np.testing.assert_allclose(kernel.run(), m / (1 + np.exp(-m)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cpu", runnable())
def test_a_long_row_is_summed_more_precisely_than_term_by_term(cpu: str) -> None:
    x = RNG.random((3, 100_001), np.float32)
    kernel = Generated([node("ReduceSum", ["x", "a"], ["y"])], {"x": x}, {"a": np.array([1])}, target_of(cpu))
    right = x.astype(np.float64).sum(1, keepdims=True)
    assert np.max(np.abs(kernel.run() - right) / right) < 2e-6


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("shape", "axes", "kind"),
    [
        ((1001, 3), [0], "ReduceSum"),  # vectors of several terms and outputs, and some numbers left
        ((3, 2, 401, 6), [0, 2], "ReduceMax"),
        ((5, 300, 16), [1], "ReduceMean"),
        ((77, 20, 1, 7), [0, 1], "ReduceMin"),
        ((1003, 3), [0], "ReduceProd"),
    ],
)
def test_few_outputs_after_their_terms_agree(cpu: str, shape: tuple[int, ...], axes: list[int], kind: str) -> None:
    x = numbers(kind, shape, shape[0])
    kernel = Generated([node(kind, ["x", "a"], ["y"])], {"x": x}, {"a": np.array(axes)}, target_of(cpu))
    right = KINDS[kind](x.astype(np.float64), axis=tuple(axes), keepdims=True)
    np.testing.assert_allclose(kernel.run(), right, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("shape", "axes", "reduced"), [((40, 8), [1], 0), ((40, 9), [1], 1), ((5, 40, 16), [2], 1), ((40, 3, 5), [1, 2], 1)]
)
def test_rows_of_more_terms_than_windows_are_fast_for_are_reduced(
    cpu: str, shape: tuple[int, ...], axes: list[int], reduced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    across = rows._Across.write
    monkeypatch.setattr(rows._Across, "write", lambda *given: written.append(0) or across(*given))
    x = RNG.standard_normal(shape).astype(np.float32)
    kernel = Generated([node("ReduceSum", ["x", "a"], ["y"])], {"x": x}, {"a": np.array(axes)}, target_of(cpu))
    right = x.astype(np.float64).sum(tuple(axes), keepdims=True)
    np.testing.assert_allclose(kernel.run().reshape(right.shape), right, rtol=1e-5, atol=1e-6)
    assert len(written) == reduced


def test_minus_infinity_is_a_maximum_of_itself() -> None:
    x = np.full((5, 37), -np.inf, np.float32)
    kernel = Generated([node("ReduceMax", ["x", "a"], ["y"])], {"x": x}, {"a": np.array([1])}, target_of(runnable()[0]))
    assert np.all(np.isneginf(kernel.run()))


def test_code_for_arm_is_built() -> None:
    x = RNG.random((7, 45), np.float32)
    assert Generated([node("ReduceSum", ["x", "a"], ["y"])], {"x": x}, {"a": np.array([1])}, ARM).code() is not None
