"""Division of integers, which CPUs compute in floating point, against C's division."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.compiler.lower.lowered import model, run_cpu


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64"])
def test_quotients_of_integers_are_exact_and_rounded_towards_zero(dtype: str) -> None:
    rng, limits = np.random.default_rng(4), np.iinfo(dtype)
    a = rng.integers(limits.min, limits.max, 3000, dtype, endpoint=True)
    b = rng.integers(limits.min, limits.max, 3000, dtype, endpoint=True) >> rng.integers(0, limits.bits, 3000)
    a[:500] = (a[:500] // 7) * 7 - (a[:500] > 0)
    b[:500], b[500:700], a[700:720] = 7, 1, limits.max
    b = np.where(b == 0, 3, b).astype(dtype)
    a[(a == limits.min) & (b == -1 if limits.min else False)] = 5
    made = model([helper.make_node("Div", ["a", "b"], ["y"])], {"a": a, "b": b}, ["y"])
    quotient = (
        np.abs(a.astype(object)) // np.abs(b.astype(object)) * (np.sign(a.astype(object)) * np.sign(b.astype(object)))
    )
    np.testing.assert_array_equal(run_cpu(made, {"a": a, "b": b})["y"], quotient.astype(dtype))
