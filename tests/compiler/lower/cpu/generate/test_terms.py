"""Products of every kind of number against exact sums or float64's, for each instruction set that this machine has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from heterocc.compiler.lower.cpu.generate.isa import isa_of
from tests.compiler.lower.cpu.generate.generated import NEON, Generated, assert_near, runnable, target_of
from tests.compiler.lower.lowered import model, run_cpu
from tests.few_examples import few

node = helper.make_node
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 31, 33, 40, 64]))
TARGETS = st.sampled_from(["x86-64", *runnable()])


def drawn(seed: int, dtype: str, *shape: int) -> np.ndarray:
    """Numbers of a type: of integers over the whole range, so that sums wrap around."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def assert_product(found: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        wanted = np.matmul(left, right)
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12 * max(1.0, float(np.abs(wanted).max())))
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint32", "int64", "uint64"])
@given(TARGETS, st.lists(st.integers(1, 3), max_size=1), SIZES, SIZES, SIZES, st.booleans(), st.integers(0, 99))
@few(6, deadline=None)
def test_a_product_of_other_numbers_than_float32_is_generated(
    dtype: str, mcpu: str, batch: list[int], rows: int, terms: int, columns: int, constant: bool, seed: int
) -> None:
    x, w = drawn(seed, dtype, *batch, rows, terms), drawn(seed + 1, dtype, terms, columns)
    inputs, weights = ({"x": x}, {"w": w}) if constant else ({"x": x, "w": w}, {})
    made = Generated([node("MatMul", ["x", "w"], ["y"])], inputs, weights, target_of(mcpu))
    if made.done is None:
        assert columns == 1 or rows * max(batch, default=1) < 8, "only products with vectors that are not in a row"
        return
    assert_product(made.run(dtype), x, w)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_transposed_factors_of_other_numbers_are_read_where_they_are(dtype: str) -> None:
    x, w = drawn(1, dtype, 70, 33), drawn(2, dtype, 40, 70)
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[1, 0]),
        node("Transpose", ["w"], ["b"], perm=[1, 0]),
        node("MatMul", ["a", "b"], ["y"]),
    ]
    found = run_cpu(model(nodes, {"x": x, "w": w}, ["y"]), {"x": x, "w": w})
    assert_product(found["y"], x.T, w.T)


@pytest.mark.parametrize("dtype", ["float16", "int32", "float64"])
def test_a_product_stores_what_its_sums_are_cast_to(dtype: str) -> None:
    x, w = (np.round(4 * drawn(n, "float32", *shape)) for n, shape in ((1, (19, 33)), (2, (33, 50))))
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [node("MatMul", ["x", "w"], ["s"]), node("Cast", ["s"], ["y"], to=to)]
    made = Generated(nodes, {"x": x}, {"w": w}, target_of(runnable()[0]))
    np.testing.assert_array_equal(made.run(dtype), (x @ w).astype(dtype))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_of_float64_is_generated(stride: int) -> None:
    x, w = drawn(1, "float64", 1, 6, 11, 19), drawn(2, "float64", 8, 3, 3, 3)
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1] * 4, strides=[stride] * 2, group=2)]
    for mcpu in dict.fromkeys(["x86-64", *runnable()]):
        found = Generated(nodes, {"x": x}, {"w": w}, target_of(mcpu)).run("float64")
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
        sums = [np.einsum("bcijyx,ocyx->boij", windows[:, 3 * g : 3 * g + 3], w[4 * g : 4 * g + 4]) for g in (0, 1)]
        np.testing.assert_allclose(found, np.concatenate(sums, axis=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("packed", ["float16", "uint16"])
@given(
    st.sampled_from([NEON, *runnable()]),
    st.integers(1, 32),
    SIZES,
    st.sampled_from([5, 16, 33, 96, 100]),
    st.integers(0, 99),
)
@few(6, deadline=None)
def test_a_weight_of_16_bits_is_read_in_16_bits_and_multiplied_in_float32(
    packed: str, mcpu: str, rows: int, terms: int, columns: int, seed: int
) -> None:
    x, w = drawn(seed, "float32", rows, terms), drawn(seed + 1, "float32", terms, columns)
    w = w.astype(np.float16).astype("float32") if packed == "float16" else (w.view("u4") & 0xFFFF0000).view("f4")
    isa = replace(isa_of(target_of(mcpu)), stored={1: packed})
    made = Generated([node("MatMul", ["x", "w"], ["y"])], {"x": x}, {"w": w}, target_of(mcpu), isa)
    if made.done is None or not made.done[1]:
        assert terms == 1, "only outer products are no sums"
        return
    assert made.done[1][0].apply(w).dtype == packed
    assert_near(made.run(), x.astype("float64") @ w, terms)
