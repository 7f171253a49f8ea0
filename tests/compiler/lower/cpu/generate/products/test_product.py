"""Generated matrix products and 1×1 convolutions against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.lower.cpu.generate.generated import ARM, Generated, assert_near, runnable, target_of
from tests.compiler.lower.lowered import assert_same, model, run_cpu, run_ort
from tests.few_examples import few

node = helper.make_node
RNG = np.random.default_rng(11)
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([13, 15, 16, 17, 31, 32, 33, 49, 63, 65, 97, 130]))
CPUS = st.sampled_from(runnable())
AVX2 = [(cpu, 40, 66) for cpu in runnable() if cpu == "x86-64-v3"]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


@given(CPUS, st.lists(st.integers(1, 4), max_size=2), SIZES, SIZES, SIZES)
@few(12, deadline=None)
def test_a_product_with_a_weight_and_its_epilogue_agree(
    cpu: str, batch: list[int], rows: int, terms: int, columns: int
) -> None:
    x, w, b = floats(*batch, rows, terms), floats(terms, columns), floats(columns)
    r = floats(*batch, rows, columns)
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Sigmoid", ["a"], ["s"]),
        node("Mul", ["a", "s"], ["t"]),
        node("Add", ["t", "r"], ["y"]),
    ]
    kernel = Generated(nodes, {"x": x, "r": r}, {"w": w, "b": b}, target_of(cpu))
    if kernel.done is None:
        assert rows * columns == 1 or columns == 1
        return
    a, wr = wide(x, r)
    m = a @ w.astype(np.float64) + b
    assert_near(kernel.run(), m / (1 + np.exp(-m)) + wr, terms)


@given(CPUS, st.booleans(), SIZES, SIZES, st.integers(1, 70))
@few(6, deadline=None)
def test_gemm_with_either_form_of_the_weight_agrees(
    cpu: str, turned: bool, rows: int, terms: int, columns: int
) -> None:
    x, w, c = floats(rows, terms), floats(terms, columns), floats(columns)
    given = np.ascontiguousarray(w.T) if turned else w
    nodes = [node("Gemm", ["x", "w", "c"], ["g"], transB=int(turned)), node("Relu", ["g"], ["y"])]
    kernel = Generated(nodes, {"x": x}, {"w": given, "c": c}, target_of(cpu))
    if kernel.done is None:
        assert columns == 1
        return
    a, b = wide(x, w)
    assert_near(kernel.run(), np.maximum(a @ b + c, 0), terms)


@given(CPUS, st.lists(st.integers(1, 3), min_size=1, max_size=2), SIZES, SIZES, SIZES)
@few(8, deadline=None)
def test_a_batched_product_of_two_inputs_agrees(
    cpu: str, batch: list[int], rows: int, terms: int, columns: int
) -> None:
    x, z, s = floats(*batch, rows, terms), floats(*batch, terms, columns), floats(1)
    nodes = [node("MatMul", ["x", "z"], ["m"]), node("Mul", ["m", "s"], ["y"])]
    kernel = Generated(nodes, {"x": x, "z": z}, {"s": s}, target_of(cpu))
    if kernel.done is None:
        assert columns == 1
        return
    a, b = wide(x, z)
    assert_near(kernel.run(), (a @ b) * s, terms)


LARGER = st.sampled_from([16, 17, 31, 40, 65, 130])


@given(CPUS, st.integers(1, 3), SIZES, SIZES, st.lists(SIZES, min_size=1, max_size=2))
@few(12, deadline=None)
def test_a_pointwise_convolution_agrees(cpu: str, batch: int, channels: int, out: int, size: list[int]) -> None:
    x, w, b = floats(batch, channels, *size), floats(out, channels, *(1 for _ in size)), floats(out)
    z = floats(batch, out, *size)
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Add", ["r", "z"], ["y"]),
    ]
    kernel = Generated(nodes, {"x": x, "z": z}, {"w": w, "b": b}, target_of(cpu))
    if kernel.done is None:
        assert out % 4 == 0 or (max(size) == 1 and out == 1)
        return
    a, k, wz = wide(x, w.reshape(out, channels), z)
    right = np.maximum(np.einsum("ok,nk...->no...", k, a) + b.reshape(-1, *(1 for _ in size)), 0) + wz
    assert_near(kernel.run(), right, channels)


@pytest.mark.parametrize("size", [(7, 7), (5, 4), (1, 35), (6, 12)])
@pytest.mark.parametrize("batch", [1, 3])
def test_maps_that_end_in_half_a_vector_agree(size: tuple[int, int], batch: int) -> None:
    x, w, z = floats(batch, 33, *size), floats(48, 33, 1, 1), floats(batch, 48, *size)
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Tanh", ["c"], ["t"]), node("Add", ["t", "z"], ["y"])]
    kernel = Generated(nodes, {"x": x, "z": z}, {"w": w}, target_of(runnable()[0]))
    right = np.tanh(np.einsum("ok,nkhw->nohw", *wide(w[:, :, 0, 0], x))) + z
    assert_near(kernel.run(), right, 33)


def test_a_weight_that_ends_in_half_a_vector_agrees() -> None:
    x, w = floats(33, 20), floats(20, 49)
    kernel = Generated([node("MatMul", ["x", "w"], ["y"])], {"x": x}, {"w": w}, target_of(runnable()[0]))
    assert_near(kernel.run(), np.matmul(*wide(x, w)), 20)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("terms", "channels", "size"), [(3, 7, (33, 31)), (5, 40, (61, 59)), (40, 29, (83, 85))])
def test_strips_of_large_maps_agree(cpu: str, terms: int, channels: int, size: tuple[int, int]) -> None:
    x, w, b = floats(2, terms, *size), floats(channels, terms, 1, 1), floats(channels)
    z = floats(2, channels, *size)
    nodes = [node("Conv", ["x", "w", "b"], ["c"]), node("Add", ["c", "z"], ["y"])]
    kernel = Generated(nodes, {"x": x, "z": z}, {"w": w, "b": b}, target_of(cpu))
    right = np.einsum("bihw,oi->bohw", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64))
    assert_near(kernel.run(), right + b[:, None, None] + z, terms)


@pytest.mark.parametrize(("cpu", "terms", "channels"), [*((cpu, 300, 20) for cpu in runnable()[:1]), *AVX2])
def test_rows_that_share_a_cache_set_are_copied(cpu: str, terms: int, channels: int) -> None:
    x, w = floats(1, terms, 32, 64), floats(channels, terms, 1, 1)
    kernel = Generated([node("Conv", ["x", "w"], ["y"])], {"x": x}, {"w": w}, target_of(cpu))
    assert kernel.done is not None
    right = np.einsum("ok,nkhw->nohw", *wide(w[:, :, 0, 0], x))
    assert_near(kernel.run(), right, terms)


@pytest.mark.parametrize("function", ["Erf", "Tanh", "HardSwish", "Softplus", "Clip", "LeakyRelu", "Floor"])
def test_epilogues_of_many_kinds_agree(function: str) -> None:
    x, w = floats(7, 20), floats(20, 37)
    arguments = ["m", "low", "high"] if function == "Clip" else ["m"]
    nodes: list[Any] = [node("MatMul", ["x", "w"], ["m"]), node(function, arguments, ["y"])]
    weights = {"w": w}
    if function == "Clip":
        weights |= {"low": np.float32(-1).reshape(()), "high": np.float32(2).reshape(())}
    kernel = Generated(nodes, {"x": x}, weights, target_of(runnable()[0]))
    m = x.astype(np.float64) @ w.astype(np.float64)
    right = {
        "Erf": lambda: np.vectorize(__import__("math").erf)(m),
        "Tanh": lambda: np.tanh(m),
        "HardSwish": lambda: m * np.clip(m / 6 + 0.5, 0, 1),
        "Softplus": lambda: np.log1p(np.exp(m)),
        "Clip": lambda: np.clip(m, -1, 2),
        "LeakyRelu": lambda: np.where(m < 0, 0.01 * m, m),
        "Floor": lambda: np.floor(m),
    }[function]()
    assert_near(kernel.run(), right, 20)


def test_rows_gathered_at_given_places_are_added_to_a_product() -> None:
    # The kernel that checks the places was joined to the product, whose code left out the check and what it writes.
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((36, 40)).astype(np.float32), "a": rng.standard_normal((9, 64)).astype(np.float32)}
    feed["places"] = rng.integers(-9, 9, 36)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Gather", ["a", "places"], ["rows"]),
        helper.make_node("Add", ["rows", "product"], ["y"]),
    ]
    made = model(nodes, feed, ["y"], {"w": rng.standard_normal((40, 64)).astype(np.float32)})
    assert_same(run_cpu(made, feed), run_ort(made, feed))
    with pytest.raises(Exception, match="an index is out of range"):
        run_cpu(made, {**feed, "places": np.full(36, 9)})


def test_code_for_arm_compiles_with_all_its_registers() -> None:
    kernel = Generated(
        [node("MatMul", ["x", "w"], ["m"]), node("Tanh", ["m"], ["y"])],
        {"x": floats(19, 33)},
        {"w": floats(33, 50)},
        ARM,
    )
    assert (kernel.isa.lanes, kernel.isa.registers) == (4, 32)
    text = kernel.code().mod.inspect_source("asm")
    assert "fmla" in text
