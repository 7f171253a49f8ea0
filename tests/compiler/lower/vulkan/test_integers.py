"""Integer arithmetic, casts and bit operations on the device, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower.vulkan_run import elementwise

REASON = vulkan_unavailable_reason()
pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}"),
]

RNG = np.random.default_rng(3)
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
SOME = [pytest.param(t, marks=[pytest.mark.slow] * (t in ("int16", "int32", "uint8", "uint64"))) for t in INTEGERS]
"""The usual suite has two of each sign, of each width one."""


def numbers(dtype: str, count: int = 500) -> np.ndarray:
    """Numbers over the whole range and small ones; never 0."""
    info = np.iinfo(dtype)
    wide = RNG.integers(info.min, info.max, count // 2, dtype, endpoint=True)
    small = RNG.integers(max(info.min, -9), 9, count - count // 2, dtype)
    both = np.concatenate([wide, small])
    both[both == 0] = 1
    return both


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The quotient towards zero, without float64 in between."""
    quotient = np.abs(a.astype(object)) // np.abs(b.astype(object))
    return np.where((a < 0) != (b < 0), -quotient, quotient)


@pytest.mark.parametrize("dtype", SOME)
def test_division_and_remainder_round_as_tvm_defines(dtype: str) -> None:
    a, b = numbers(dtype), RNG.permutation(numbers(dtype))
    if dtype in SIGNED:
        b[(b == -1) & (a == np.iinfo(dtype).min)] = 1  # that quotient is no number of the type
    np.testing.assert_array_equal(elementwise(tirx.floordiv, a, b), a // b)
    np.testing.assert_array_equal(elementwise(tirx.floormod, a, b), a % b)
    quotient = truncated(a, b)
    np.testing.assert_array_equal(elementwise(tirx.truncdiv, a, b), quotient.astype(dtype))
    rest = a.astype(object) - quotient * b.astype(object)
    np.testing.assert_array_equal(elementwise(tirx.truncmod, a, b), rest.astype(dtype))


@pytest.mark.parametrize("divisor", [-7, -1, 1, 3, 8, 1000])
def test_division_by_constants_rounds_down(divisor: int) -> None:
    a = numbers("int32")
    a[a == np.iinfo(np.int32).min] = 5
    constant = tirx.const(divisor, "int32")
    np.testing.assert_array_equal(elementwise(lambda v: tirx.floordiv(v, constant), a), a // divisor)
    np.testing.assert_array_equal(elementwise(lambda v: tirx.floormod(v, constant), a), a % divisor)


@pytest.mark.parametrize("dtype", SOME)
def test_arithmetic_and_bits_wrap(dtype: str) -> None:
    a, b = numbers(dtype), RNG.permutation(numbers(dtype))
    cases: list[tuple[Callable[[Any, Any], Any], np.ndarray]] = [
        (lambda x, y: x + y, a + b),
        (lambda x, y: x - y, a - b),
        (lambda x, y: x * y, a * b),
        (lambda x, y: tirx.bitwise_and(x, y), a & b),
        (lambda x, y: tirx.bitwise_xor(x, y), a ^ b),
        (lambda x, y: tirx.bitwise_or(x, tirx.bitwise_not(y)), a | ~b),
        (tirx.max, np.maximum(a, b)),
        (tirx.min, np.minimum(a, b)),
        (lambda x, _: x >> tirx.const(3, dtype), a >> np.array(3, dtype)),
        (lambda x, _: x << tirx.const(2, dtype), a << np.array(2, dtype)),
    ]
    for compute, want in cases:
        np.testing.assert_array_equal(elementwise(compute, a, b), want)


@pytest.mark.parametrize("source", [*SOME, "bool", "float16", "float32", "float64"])
def test_casts_give_what_numpy_gives(source: str) -> None:
    if source == "bool":
        values = RNG.integers(0, 2, 100).astype(bool)
    elif source.startswith("float"):
        values = np.concatenate([RNG.uniform(0, 120, 100), [0, 0.5, 1.99]]).astype(source)
    else:
        values = numbers(source)
    for target in (*INTEGERS, "bool", "float16", "float32", "float64"):
        with np.errstate(over="ignore"):
            want = values.astype(target)
        got = elementwise(lambda v, to=target: tirx.Cast(to, v), values)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=f"{source} to {target}")


def test_a_float64_is_rounded_to_float16_once() -> None:
    """A number next to the middle of two float16s, which a float32 would take for that middle."""
    bits = np.arange(0x0001, 0x7BFF, 7, np.uint16)
    low, high = bits.view(np.float16).astype(np.float64), (bits + np.uint16(1)).view(np.float16).astype(np.float64)
    middle = (low + high) / 2
    near = np.concatenate([np.nextafter(middle, 0), middle, np.nextafter(middle, np.inf)])
    ends = [0.0, 5e-324, 1e-40, 65519.999999999, 65520.0, 1e39, 1e308, np.inf, np.nan]
    values = np.concatenate([near, ends])
    values = np.concatenate([values, -values])
    with np.errstate(over="ignore"):
        want = values.astype(np.float16)
    got = elementwise(lambda v: tirx.Cast("float16", v), values)
    np.testing.assert_array_equal(got, want)


def test_bits_are_counted() -> None:
    a = numbers("int32").view(np.uint32)
    counts = np.array([bin(int(v)).count("1") for v in a], np.uint32)
    np.testing.assert_array_equal(elementwise(tirx.popcount, a), counts)
    zeros = np.array([32 - int(v).bit_length() for v in a], np.int32)
    np.testing.assert_array_equal(elementwise(lambda v: tirx.Cast("int32", tirx.clz(v)), a), zeros)


def test_bits_of_floats_are_read_as_integers() -> None:
    a = RNG.standard_normal(100).astype(np.float32)
    np.testing.assert_array_equal(elementwise(lambda v: tirx.reinterpret("int32", v), a), a.view(np.int32))


def test_minimum_and_maximum_take_the_right_operand_at_nan_as_cpu_code_does() -> None:
    a = np.array([1, np.nan, 1, np.nan, 2], np.float32)
    b = np.array([np.nan, 1, 2, np.nan, 1], np.float32)
    np.testing.assert_array_equal(elementwise(tirx.max, a, b), np.where(a > b, a, b))
    np.testing.assert_array_equal(elementwise(tirx.min, a, b), np.where(a < b, a, b))


@pytest.mark.parametrize("source", ["int16", "int32", "int64"])
@pytest.mark.parametrize("form", ["x < 0", "x <= -1", "x >= 0", "0 > x", "x < 2^40"])
def test_an_index_that_counts_from_the_end_is_widened_and_moved(source: str, form: str) -> None:
    """Mesa 22.3 ignores the condition if both arms of a selection use a widened index."""
    x = np.arange(-64, 64).astype(source)

    def number(value: int) -> Any:
        return tirx.const(value, "int64")

    def chosen(index: Any) -> Any:
        i = index.astype("int64")
        moved = i + number(50)
        return {
            "x < 0": lambda: tirx.Select(i < number(0), moved, i),
            "x <= -1": lambda: tirx.Select(i <= number(-1), moved, i),
            "x >= 0": lambda: tirx.Select(i >= number(0), i, moved),
            "0 > x": lambda: tirx.Select(number(0) > i, moved, i),
            "x < 2^40": lambda: tirx.Select(i < number(1 << 40), tirx.Select(i < number(0), moved, i), i),
        }[form]()

    np.testing.assert_array_equal(elementwise(chosen, x), np.where(x < 0, x.astype(np.int64) + 50, x))
