"""Inputs that several families of cases share."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.differential.operators import Array, Constant, constant, draw

X = draw(2, 3, 4)
IMAGE = draw(1, 4, 6, 6)
NEGATIVE = np.array([1, -1, 3, -4])

REDUCTIONS = tuple("Reduce" + name for name in "Mean Max Min Prod L1 L2 SumSquare LogSumExp".split())
"""Reductions of real numbers that have `axes` as an attribute before operator set 18, and as an input since."""


def ints(*shape: int, d: Any = np.int64, lo: int = -5, hi: int = 5) -> Array:
    return draw(*shape, dtype=d, low=lo, high=hi)


def nz(array: Array) -> Array:
    """Without zeros: a divisor."""
    return np.where(array == 0, 3, array).astype(array.dtype)


def weight(*shape: int) -> Constant:
    return constant(draw(*shape, low=-0.5, high=0.5))


def u8(*shape: int, seed: int = 0) -> Array:
    return draw(*shape, dtype=np.uint8, low=0, high=255, seed=seed)


def s8(*shape: int, seed: int = 0) -> Array:
    return draw(*shape, dtype=np.int8, low=-128, high=127, seed=seed)


def sc(value: Any) -> Constant:
    """A scale."""
    return constant(value, np.float32)
