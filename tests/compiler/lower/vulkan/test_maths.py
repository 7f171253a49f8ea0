"""Functions of real numbers on the device, against float64, with the errors that `maths` states."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from heterocc.compiler.lower.vulkan import expressions
from heterocc.compiler.lower.vulkan.dtypes import FLOAT32
from heterocc.compiler.lower.vulkan.scalar import Scalar
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower.vulkan_run import elementwise

REASON = vulkan_unavailable_reason()
pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}"),
]

RNG = np.random.default_rng(1)
COUNT = 20_000
INF, NAN = math.inf, math.nan
SPECIAL = np.array([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, INF, -INF, NAN, 1e30, -1e30, 1e-30, 2.5, -2.5], np.float32)

erf = np.vectorize(math.erf)


def uniform(low: float, high: float) -> np.ndarray:
    return RNG.uniform(low, high, COUNT).astype(np.float32)


def signed(low: float, high: float) -> np.ndarray:
    """Numbers of both signs between 2^low and 2^high, evenly over magnitudes."""
    return (np.exp2(RNG.uniform(low, high, COUNT)) * RNG.choice([-1, 1], COUNT)).astype(np.float32)


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error in units in the last place, over results that are normal numbers."""
    size = np.abs(want)
    normal = np.isfinite(want) & (size >= 2.0**-126) & (size < 3.4e38)
    assert normal.sum() > want.size // 2
    unit = np.spacing(np.where(normal, size, 1).astype(np.float32)).astype(np.float64)
    error = np.abs(got.astype(np.float64) - want) / unit
    return float(error[normal].max())


UNARY: list[tuple[str, Callable[[Any], Any], Callable[..., np.ndarray], np.ndarray, float]] = [
    ("exp", tirx.exp, np.exp, uniform(-87, 88), 2),
    ("exp2", tirx.exp2, np.exp2, uniform(-125, 127), 2),
    ("exp10", tirx.exp10, lambda x: np.power(10.0, x), uniform(-37, 38), 3),
    ("log", tirx.log, np.log, np.abs(signed(-126, 127)), 2),
    ("log near 1", tirx.log, np.log, uniform(0.5, 2), 2),
    ("log2", tirx.log2, np.log2, uniform(0.5, 2), 3),
    ("log10", tirx.log10, np.log10, uniform(0.3, 30), 3),
    ("log1p", tirx.log1p, np.log1p, np.concatenate([signed(-30, -1), uniform(-0.99, 10)]), 4),
    ("tanh", tirx.tanh, np.tanh, signed(-20, 4), 3),
    ("sinh", tirx.sinh, np.sinh, signed(-20, 6.4), 5),
    ("cosh", tirx.cosh, np.cosh, signed(-20, 6.4), 5),
    ("asinh", tirx.asinh, np.arcsinh, signed(-20, 100), 5),
    ("acosh", tirx.acosh, np.arccosh, np.abs(signed(0.001, 100)), 5),
    ("atanh", tirx.atanh, np.arctanh, uniform(-1, 1), 6),
    ("erf", tirx.erf, erf, signed(-20, 2.5), 3),
    ("sin", tirx.sin, np.sin, uniform(-3, 3), 3),
    ("tan", tirx.tan, np.tan, uniform(-1.5, 1.5), 5),
    ("asin", tirx.asin, np.arcsin, uniform(-1, 1), 3),
    ("acos", tirx.acos, np.arccos, uniform(-0.99, 0.99), 3),
    ("atan", tirx.atan, np.arctan, signed(-20, 40), 3),
    ("sqrt", tirx.sqrt, np.sqrt, np.abs(signed(-120, 120)), 3),
    ("rsqrt", tirx.rsqrt, lambda x: 1 / np.sqrt(x), np.abs(signed(-120, 120)), 4),
    ("sigmoid", tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x)), signed(-5, 6), 4),
]


@pytest.mark.parametrize(("function", "reference", "x", "bound"), [c[1:] for c in UNARY], ids=[c[0] for c in UNARY])
def test_functions_keep_their_stated_error(
    function: Callable[[Any], Any], reference: Callable[..., np.ndarray], x: np.ndarray, bound: float
) -> None:
    assert ulps(elementwise(function, x), reference(x.astype(np.float64))) <= bound


@pytest.mark.parametrize("magnitude", [(3, 17), (17, 127)], ids=["to 2^17", "beyond"])
def test_sine_and_cosine_of_large_arguments_are_right(magnitude: tuple[float, float]) -> None:
    x = signed(*magnitude)
    for function, reference in ((tirx.sin, np.sin), (tirx.cos, np.cos)):
        want = reference(x.astype(np.float64))
        error = np.abs(elementwise(function, x) - want)
        assert error.max() < 2e-7
        assert error[np.abs(want) < 1e-3].max() < 1e-10


@pytest.mark.parametrize(
    ("x", "y"),
    [(np.abs(signed(-20, 20)), uniform(-6, 6)), (uniform(0.9, 1.1), signed(0, 9)), (uniform(1, 100), uniform(-19, 19))],
    ids=["wide", "near one", "large"],
)
def test_powers_keep_their_stated_error(x: np.ndarray, y: np.ndarray) -> None:
    with np.errstate(over="ignore", under="ignore"):
        assert ulps(elementwise(tirx.pow, x, y), np.power(x.astype(np.float64), y.astype(np.float64))) <= 8


@pytest.mark.parametrize("name", ["pow", "atan2", "fmod", "hypot", "copysign"])
def test_functions_of_two_treat_zeros_infinities_and_nan_as_c_does(name: str) -> None:
    x, y = (grid.ravel().copy() for grid in np.meshgrid(SPECIAL, SPECIAL))
    reference = {"pow": np.power, "atan2": np.arctan2}.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        want = reference(x, y)
    got = elementwise(getattr(tirx, name), x, y)
    with np.errstate(invalid="ignore"):
        close = np.abs(got - want) <= 1e-6 * np.abs(want)
    same = (close | (got == want)) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
    assert [(a, b) for a, b in zip(x[~same], y[~same], strict=True)] == []


@pytest.mark.parametrize(
    "name", ["exp", "log", "log2", "log1p", "tanh", "sinh", "asinh", "acosh", "atanh", "asin", "acos", "atan", "sqrt"]
)
def test_functions_of_one_treat_zeros_infinities_and_nan_as_c_does(name: str) -> None:
    reference = {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}.get(name, name)
    reference = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}.get(reference, reference)
    with np.errstate(all="ignore"):
        want = getattr(np, reference)(SPECIAL)
    np.testing.assert_allclose(elementwise(getattr(tirx, name), SPECIAL), want, rtol=1e-6)


def test_remainders_are_exact() -> None:
    x, y = signed(-20, 20), signed(-20, 20)
    np.testing.assert_array_equal(elementwise(tirx.fmod, x, y), np.fmod(x, y))


def test_small_constant_exponents_are_products() -> None:
    x = signed(-5, 5)
    np.testing.assert_array_equal(elementwise(lambda v: tirx.pow(v, tirx.const(2.0, "float32")), x), x * x)


def test_rounding_is_to_even_or_away_from_zero_as_asked() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 8388609.0, INF], np.float32)
    np.testing.assert_array_equal(elementwise(tirx.nearbyint, x), np.rint(x))
    away = np.array([-3, -2, -1, 1, 2, 3, 0, 8388609.0, INF], np.float32)
    got = elementwise(lambda v: tirx.call_pure_extern("float32", "roundf", v), x)
    np.testing.assert_array_equal(got, away)


def test_float16_is_computed_in_float32() -> None:
    x = RNG.uniform(-4, 4, 1000).astype(np.float16)
    for function, reference in ((tirx.exp, np.exp), (tirx.tanh, np.tanh), (tirx.sin, np.sin)):
        got, want = elementwise(function, x), reference(x.astype(np.float64))
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, want, rtol=6e-4, atol=1e-4)


def test_float64_has_arithmetic_roots_and_rounding() -> None:
    x = RNG.uniform(0.1, 4, 1000)
    np.testing.assert_allclose(elementwise(lambda v: tirx.sqrt(v) + v * v - v / 3.0, x), np.sqrt(x) + x * x - x / 3)
    np.testing.assert_array_equal(elementwise(tirx.floor, x), np.floor(x))


def test_classes_of_floats_are_determined_from_their_bits() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        x = np.array([0, 1, INF, -INF, NAN, np.finfo(dtype).max], dtype)
        np.testing.assert_array_equal(elementwise(tirx.isnan, x), np.isnan(x))
        np.testing.assert_array_equal(elementwise(tirx.isinf, x), np.isinf(x))
        np.testing.assert_array_equal(elementwise(tirx.isfinite, x), np.isfinite(x))


@pytest.mark.parametrize("corrected", [True, False])
def test_a_quotient_that_is_rounded_is_exact_if_a_device_multiplies_by_reciprocals(
    corrected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    divide = Scalar.__truediv__

    def by_reciprocal(a: Scalar, b: Scalar | float) -> Scalar:
        return a * divide(a.constant(1), b) if a.dtype == FLOAT32 else divide(a, b)

    monkeypatch.setattr(Scalar, "__truediv__", by_reciprocal)
    if not corrected:
        monkeypatch.setattr(expressions, "exact_quotient", by_reciprocal)
    a, b = (m.ravel().astype(np.float32) for m in np.meshgrid(np.arange(-1024, 1024), np.arange(1, 256)))
    floors = elementwise(lambda x, y: tirx.floor(x / y), a, b)
    integers = elementwise(lambda x, y: (x / y).astype("int32"), a, b)
    want = a / b
    assert np.array_equal(floors, np.floor(want)) == corrected
    assert np.array_equal(integers, np.trunc(want).astype("int32")) == corrected
    special = elementwise(lambda x, y: tirx.floor(x / y), SPECIAL.repeat(SPECIAL.size), np.tile(SPECIAL, SPECIAL.size))
    with np.errstate(all="ignore"):
        exact = np.floor(SPECIAL.repeat(SPECIAL.size) / np.tile(SPECIAL, SPECIAL.size))
    small = ~(np.abs(exact) > 2.0**23)  # of others the device's quotient decides
    assert np.array_equal(special[small], exact[small], equal_nan=True) or not corrected
