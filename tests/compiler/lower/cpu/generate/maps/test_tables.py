"""Maps of bytes by tables against the same map computed for every element."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from heterocc.compiler.lower.cpu.generate.maps import maps, tables
from heterocc.compiler.lower.cpu.generate.maps.tables import Table
from tests.compiler.lower.cpu.generate.generated import Generated, runnable, target_of
from tests.few_examples import few

node = helper.make_node
CPUS = st.sampled_from(runnable())
TYPES = st.sampled_from(["uint8", "int8"])


def weights(dtype: str, zero: int) -> dict[str, np.ndarray]:
    return {
        "s": np.array(0.05, np.float32),
        "z": np.array(zero, dtype),
        "t": np.array(0.04, np.float32),
        "u": np.array(7, dtype),
        "c": np.array(0.5**0.5, np.float32),
        "one": np.array(1, np.float32),
    }


def steps(source: str) -> list[onnx.NodeProto]:
    """Twice the GELU of a dequantised value, quantised, with an error function that is quantised, too."""
    return [
        node("DequantizeLinear", [source, "s", "z"], ["f"]),
        node("Mul", ["f", "c"], ["m"]),
        node("Erf", ["m"], ["e"]),
        node("QuantizeLinear", ["e", "s", "z"], ["eq"]),
        node("DequantizeLinear", ["eq", "s", "z"], ["ef"]),
        node("Add", ["ef", "one"], ["a"]),
        node("Mul", ["f", "a"], ["g"]),
        node("QuantizeLinear", ["g", "t", "u"], ["y"]),
    ]


def quantised(values: np.ndarray, scale: float, zero: int, dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    found = np.round(values.astype(np.float32) / np.float32(scale)) + zero
    return np.clip(found, limits.min, limits.max).astype(dtype)


def right(x: np.ndarray, zero: int) -> np.ndarray:
    dtype = x.dtype.name
    f = (x.astype(np.float32) - zero) * np.float32(0.05)
    e = quantised(np.vectorize(erf)(f * np.float32(0.5**0.5)), 0.05, zero, dtype)
    a = (e.astype(np.float32) - zero) * np.float32(0.05) + 1
    return quantised(f * a, 0.04, 7, dtype)


def checked(nodes: list[onnx.NodeProto], x: np.ndarray, dtype: str, zero: int, cpu: str) -> tuple[bool, np.ndarray]:
    """Whether a map of `x` has a table, and its results, which are those that the same map has without one."""
    found: list[Table | None] = []

    def find(*arguments: Any) -> Table | None:
        found.append(tables.find_table(*arguments))
        return found[-1]

    results = []
    for way in (find, lambda _: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(maps, "find_table", way)
            results.append(Generated(nodes, {"x": x}, weights(dtype, zero), target_of(cpu)).run(dtype))
    np.testing.assert_array_equal(*results)
    return found[0] is not None, results[0]


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    """Numbers next to the middle of two steps may be rounded to either, once for each of two roundings."""
    apart = np.abs(found.reshape(wanted.shape).astype(int) - wanted.astype(int))
    assert apart.max() <= 3 and np.mean(apart > 0) < 0.05


@given(CPUS, TYPES, st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(-9, 99), st.integers(0, 9))
@few(12, deadline=None)
def test_a_chain_between_bytes_agrees(cpu: str, dtype: str, shape: list[int], zero: int, seed: int) -> None:
    zero = zero if dtype == "int8" else abs(zero)
    limits = np.iinfo(dtype)
    x = np.random.default_rng(seed).integers(limits.min, limits.max + 1, (*shape, 65)).astype(dtype)
    has_table, found = checked(steps("x"), x, dtype, zero, cpu)
    assert has_table == (x.size >= tables.LEAST_ELEMENTS)
    assert_near(found, right(x, zero))


@given(CPUS, TYPES, st.integers(0, 9))
@few(4, deadline=None)
def test_a_transposed_input_and_one_that_is_quantised_first_agree(cpu: str, dtype: str, seed: int) -> None:
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max + 1, (70, 130)).astype(dtype)
    real = rng.standard_normal((33, 257)).astype(np.float32) * 3
    has_table, found = checked([node("Transpose", ["x"], ["v"], perm=[1, 0]), *steps("v")], x, dtype, 3, cpu)
    assert has_table
    assert_near(found, right(x.T, 3))
    has_table, found = checked([node("QuantizeLinear", ["x", "s", "z"], ["q"]), *steps("q")], real, dtype, 3, cpu)
    assert has_table
    assert_near(found, right(quantised(real, 0.05, 3, dtype), 3))


@pytest.mark.parametrize("cpu", runnable())
def test_a_map_that_needs_more_than_a_byte_has_no_table(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(maps, "find_table", lambda *given: found.append(tables.find_table(*given)))
    x, r = np.zeros((64, 128), np.uint8), np.linspace(0, 2, 128, dtype=np.float32)
    nodes = [*steps("x")[:-1], node("Mul", ["g", "r"], ["h"]), node("QuantizeLinear", ["h", "t", "u"], ["y"])]
    Generated(nodes, {"x": x, "r": r}, weights("uint8", 3), target_of(cpu))
    assert found == [None]
