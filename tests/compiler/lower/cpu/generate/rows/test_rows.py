"""Generated softmax, normalisations and their like against numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.compiler.lower.cpu.generate.rows.joins import joined_rows
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.runtime import load
from tests.compiler.lower.cpu.generate.generated import ARM, Generated, runnable, target_of
from tests.compiler.lower.lowered import job, model
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
@few(16, deadline=None)
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


def _is_joined(rows: list[int], row: list[int]) -> bool:
    return int(np.prod(rows)) >= 8 or int(np.prod(row)) <= 1 << 15


def _normal(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.asarray((wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + epsilon))


@given(CPUS, st.lists(SIZES, min_size=1, max_size=3), st.integers(2, 230))
@few(6, deadline=None)
def test_root_mean_square_normalisation_agrees(cpu: str, shape: list[int], length: int) -> None:
    assume(np.prod(shape) * length < 200_000)
    x = RNG.standard_normal((int(np.prod(shape)), length)).astype(np.float32)
    scale = RNG.standard_normal(length).astype(np.float32)
    nodes = [
        node("Mul", ["x", "x"], ["q"]),
        node("ReduceMean", ["q", "a"], ["m"]),
        node("Add", ["m", "e"], ["s"]),
        node("Sqrt", ["s"], ["r"]),
        node("Div", ["x", "r"], ["n"]),
        node("Mul", ["n", "scale"], ["y"]),
    ]
    constants = {"a": np.array([1]), "e": np.float32(1e-5).reshape(()), "scale": scale}
    kernel = Generated(nodes, {"x": x}, constants, target_of(cpu))
    wide = x.astype(np.float64)
    right = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(kernel.run(), right, rtol=1e-5, atol=1e-6)


def _assert_normal(found: np.ndarray, right: np.ndarray, x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> None:
    """Agreement up to the rounding of the mean, which a small deviation magnifies."""
    wide = x.astype(np.float64)
    magnified = np.abs(wide).max(axes, keepdims=True) / np.sqrt(wide.var(axes, keepdims=True) + epsilon)
    assert np.all(np.abs(found - right) <= 1e-5 * (1 + np.abs(right)) + 5e-6 * magnified)


@given(CPUS, st.lists(SIZES, min_size=2, max_size=4), st.data())
@few(8, deadline=None)
def test_layer_normalisation_over_any_last_axes_agrees(cpu: str, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(1, len(shape) - 1))
    assume(np.prod(shape[axis:]) > 1 and np.prod(shape) < 200_000 and _is_joined(shape[:axis], shape[axis:]))
    x = (3 + RNG.standard_normal(shape)).astype(np.float32)
    scale, bias = (RNG.standard_normal(shape[axis:]).astype(np.float32) for _ in range(2))
    nodes = [node("LayerNormalization", ["x", "s", "b"], ["y"], axis=axis)]
    kernel = Generated(nodes, {"x": x}, {"s": scale, "b": bias}, target_of(cpu))
    axes = tuple(range(axis, len(shape)))
    _assert_normal(kernel.run(), _normal(x, axes) * scale + bias, x, axes, 1e-5)


@given(CPUS, st.lists(SIZES, min_size=3, max_size=4))
@few(6, deadline=None)
def test_instance_normalisation_and_an_activation_agree(cpu: str, shape: list[int]) -> None:
    assume(np.prod(shape[2:]) > 1 and np.prod(shape) < 200_000)
    x = (3 + RNG.standard_normal(shape)).astype(np.float32)
    scale, bias = (RNG.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
    nodes = [node("InstanceNormalization", ["x", "s", "b"], ["n"]), node("Sigmoid", ["n"], ["y"])]
    kernel = Generated(nodes, {"x": x}, {"s": scale, "b": bias}, target_of(cpu))
    along = (shape[1], *(1 for _ in shape[2:]))
    axes = tuple(range(2, len(shape)))
    right = _normal(x, axes) * scale.reshape(along) + bias.reshape(along)
    _assert_normal(kernel.run(), 1 / (1 + np.exp(-right)), x, axes, 1e-5)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("axes", [(0, 2), (0, 2, 3), (1,), (1, 2), (3,)])
def test_variance_over_axes_apart_agrees(cpu: str, axes: tuple[int, ...]) -> None:
    # Its own numbers: five of them whose deviation happens to be tiny magnify rounding without bound.
    x = (3 + np.random.default_rng(1).standard_normal((3, 5, 7, 21))).astype(np.float32)
    kernel = Generated([node("MeanVarianceNormalization", ["x"], ["y"], axes=list(axes))], {"x": x}, {}, target_of(cpu))
    _assert_normal(kernel.run(), _normal(x, axes, 0.0), x, axes, 1e-4)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_results_of_rows_alone_agree(cpu: str, axis: int) -> None:
    x = (3 * RNG.standard_normal((6, 35, 21))).astype(np.float32)
    nodes = [
        node("ReduceMax", ["x", "a"], ["m"]),
        node("Sub", ["x", "m"], ["d"]),
        node("Exp", ["d"], ["e"]),
        node("ReduceSum", ["e", "a"], ["s"]),
        node("Log", ["s"], ["l"]),
        node("Add", ["l", "m"], ["y"]),
    ]
    kernel = Generated(nodes, {"x": x}, {"a": np.array([axis])}, target_of(cpu))
    right = np.log(np.exp(x.astype(np.float64)).sum(axis, keepdims=True))
    np.testing.assert_allclose(kernel.run(), right, rtol=1e-6, atol=1e-6)


def test_a_mask_before_and_an_activation_after_softmax_are_parts_of_its_kernel() -> None:
    x = RNG.standard_normal((3, 4, 50)).astype(np.float32)
    mask = np.where(RNG.random((3, 1, 50)) < 0.3, -np.inf, 0).astype(np.float32)
    nodes = [
        node("Mul", ["x", "k"], ["a"]),
        node("Add", ["a", "m"], ["b"]),
        node("Softmax", ["b"], ["c"], axis=-1),
        node("Mul", ["c", "c"], ["y"]),
    ]
    kernel = Generated(nodes, {"x": x, "m": mask}, {"k": np.float32(0.125).reshape(())}, target_of(runnable()[0]))
    right = softmax(x.astype(np.float64) * 0.125 + mask, 2) ** 2
    np.testing.assert_allclose(kernel.run(), right, rtol=3e-6, atol=1e-8)


@pytest.mark.parametrize("divisor", [1e-38, 1e-33, 1.0, 1e33, np.inf])
def test_division_by_extreme_values_of_a_row_is_exact(divisor: float) -> None:
    x = np.zeros((2, 40), np.float32)
    x[0, 3], x[1, 5:7] = divisor, -divisor / 2
    nodes = [node("Abs", ["x"], ["a"]), node("ReduceMax", ["a", "axes"], ["m"]), node("Div", ["x", "m"], ["y"])]
    kernel = Generated(nodes, {"x": x}, {"axes": np.array([1])}, target_of(runnable()[0]))
    assert kernel.done is not None
    assert "T.float32(1.0) / " in kernel.done[0].script()  # what is divided by others is multiplied
    with np.errstate(invalid="ignore"):
        right = x / np.abs(x).max(1, keepdims=True)
    np.testing.assert_allclose(kernel.run(), right, rtol=2e-7)


def test_rows_of_minus_infinity_and_nan_are_as_in_the_definition() -> None:
    x = RNG.standard_normal((6, 37)).astype(np.float32)
    x[1], x[2, 30], x[3, 2], x[4, 3:] = -np.inf, np.nan, np.nan, -np.inf
    found = Generated([node("Softmax", ["x"], ["y"], axis=1)], {"x": x}, {}, target_of(runnable()[0])).run()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, softmax(x, 1), rtol=3e-6, atol=1e-7)


def test_what_stands_before_windows_is_a_kernel_of_its_own() -> None:
    x = RNG.standard_normal((1, 8, 16, 16)).astype(np.float32)
    nodes = [node("Exp", ["x"], ["e"]), node("MaxPool", ["e"], ["y"], kernel_shape=[2, 2], strides=[2, 2])]
    made = model(nodes, {"x": x}, ["y"], {})
    module = joined_rows(kernel_module(job(made), target_of(runnable()[0])))
    assert len(module.kernels) == 2


@pytest.mark.parametrize("axis", [1, 2])
def test_code_for_arm_is_built(axis: int) -> None:
    x = RNG.random((7, 45, 19), np.float32)
    assert Generated([node("Softmax", ["x"], ["y"], axis=axis)], {"x": x}, {}, ARM).code() is not None


@pytest.mark.parametrize("last", ["Softmax", "ReduceMean"])
@pytest.mark.parametrize("axes", [(2,), (0, 1, 2)])
def test_single_elements_behind_a_reduction_are_not_its_rows(last: str, axes: tuple[int, ...], tmp_path: Path) -> None:
    x = RNG.standard_normal((2, 7, 4)).astype(np.float32)
    second = node("Softmax", ["m"], ["y"], axis=2) if last == "Softmax" else node(last, ["m", "b"], ["y"])
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)]
    numbers = [numpy_helper.from_array(np.array(n), name) for name, n in (("a", axes), ("b", [2]))]
    result = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph([node("ReduceMean", ["x", "a"], ["m"]), second], "m", given, result, numbers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="CPU", check=False)
    with load(tmp_path / "m.hcb") as session:
        found = np.asarray(session.run({"x": x})["y"])
    mean = x.astype(np.float64).mean(axes, keepdims=True)
    np.testing.assert_allclose(found, np.ones_like(mean) if last == "Softmax" else mean, rtol=1e-6, atol=3e-7)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("length", "in_output"), [(80, True), (79, False)])
def test_powers_of_rows_of_whole_vectors_are_kept_in_the_memory_of_the_output(
    cpu: str, length: int, in_output: bool
) -> None:
    """Otherwise the last vector overlaps the one before it, and would be divided twice."""
    x = (4 * RNG.standard_normal((5, length))).astype(np.float32)
    nodes = [node("Softmax", ["x"], ["p"], axis=-1), node("Mul", ["p", "x"], ["m"]), node("Relu", ["m"], ["y"])]
    kernel = Generated(nodes, {"x": x}, {}, target_of(cpu))
    assert kernel.done is not None
    assert (f"alloc_buffer((T.int64({length}),))" not in kernel.done[0].script()) is in_output
    np.testing.assert_allclose(kernel.run(), np.maximum(softmax(x, 1) * x, 0), rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("shape", [(70_000,), (700, 100)])
def test_a_mean_of_all_that_is_a_scalar_is_added_in_several_sums(cpu: str, shape: tuple[int, ...]) -> None:
    """In one sum, that of 2²⁵ ones stayed at 2²⁴."""
    x = RNG.uniform(0, 1, shape).astype(np.float32)
    kernel = Generated([node("ReduceMean", ["x"], ["y"], keepdims=0)], {"x": x}, {}, target_of(cpu))
    assert kernel.done is not None
    np.testing.assert_allclose(kernel.run(), x.mean(dtype=np.float64), rtol=3e-7)
