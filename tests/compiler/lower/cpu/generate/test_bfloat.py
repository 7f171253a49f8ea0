"""Products of factors that are rounded to bfloat16, against float64 products of the same rounded factors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from onnx import NodeProto, helper
from onnx.reference import ReferenceEvaluator

from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.lower.cpu.generate.isa import has_pairs, isa_of
from heterocc.compiler.lower.cpu.generate.panels import Panels, rounded
from tests.compiler.lower.cpu.generate.generated import Generated, assert_near, target_of
from tests.few_examples import few

TARGET = tvm.target.Target(
    {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4", "mattr": ["-prefer-256-bit", "+avx512bf16"]}
)
ISA = dataclasses.replace(isa_of(TARGET), bfloat=True)
RNG = np.random.default_rng(3)
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([47, 64, 65, 100, 130]))
TERMS = st.one_of(st.integers(8, 70), st.sampled_from([96, 127, 128, 130]))

runs_here = pytest.mark.skipif("avx512bf16" not in host_cpu().features, reason="this CPU lacks AVX512-BF16")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def short(array: np.ndarray) -> np.ndarray:
    """The array rounded to bfloat16, in float64."""
    return (rounded(array).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def generated(
    nodes: Sequence[NodeProto], inputs: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray]
) -> Generated:
    return Generated(nodes, inputs, weights, TARGET, ISA)


def conv(x: np.ndarray, w: np.ndarray, **attributes: Any) -> tuple[np.ndarray, np.ndarray]:
    """A convolution's result, and the one wanted."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    made = generated([node], {"x": x}, {"w": w})
    assert made.done is not None and isinstance(made.done[1][0], Panels) and made.done[1][0].packed == "pairs"
    types = [helper.make_tensor_value_info(name, 11, None) for name in "xwy"]
    model = helper.make_model(helper.make_graph([node], "g", types[:2], types[2:]))
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": short(x), "w": short(w)})
    return made.run(), np.asarray(wanted)


def test_rounding_is_to_the_nearest_even_and_keeps_infinities_and_nan() -> None:
    given = np.array([1.0, 1.00390625, 1.01171875, np.inf, -np.inf, np.nan, 3.4e38, -0.0], np.float32)
    found = (rounded(given).astype(np.uint32) << np.uint32(16)).view(np.float32)
    np.testing.assert_array_equal(found, np.array([1.0, 1.0, 1.015625, np.inf, -np.inf, np.nan, np.inf, -0.0]))


@runs_here
@few(3)
@given(rows=SIZES, terms=TERMS, columns=SIZES, weight=st.booleans())
def test_matrix_products_are_those_of_rounded_factors(rows: int, terms: int, columns: int, weight: bool) -> None:
    a, b = floats(rows, terms), floats(terms, max(columns, 2))
    inputs, weights = ({"a": a}, {"b": b}) if weight else ({"a": a, "b": b}, {})
    made = generated([helper.make_node("MatMul", ["a", "b"], ["y"])], inputs, weights)
    if made.done is None or (weight and not made.done[1]):
        return  # a product of few rows of data is of no kind that is generated
    assert_near(made.run(), short(a) @ short(b), terms)


@runs_here
@few(2)
@given(
    inputs=st.integers(2, 20),
    outputs=st.integers(1, 40),
    size=st.integers(5, 20),
    stride=st.integers(1, 2),
    groups=st.sampled_from([1, 1, 2]),
)
def test_convolutions_of_one_tap_are_those_of_rounded_factors(
    inputs: int, outputs: int, size: int, stride: int, groups: int
) -> None:
    x, w = floats(1, 8 * groups * inputs, size, size + 3), floats(max(outputs, 4) * groups, 8 * inputs, 1, 1)
    found, wanted = conv(x, w, strides=[stride, stride], group=groups)
    assert_near(found, wanted, x.shape[1])


def test_weights_are_stored_in_two_bytes_a_number() -> None:
    made = generated([helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": floats(4, 64)}, {"b": floats(64, 32)})
    assert made.done is not None
    (packing,) = made.done[1]
    assert packing.apply(floats(64, 32)).nbytes == 64 * 32 * 2


def test_a_cpu_without_the_instructions_has_no_pairs() -> None:
    assert has_pairs(TARGET) and not has_pairs(target_of("x86-64-v4"))
