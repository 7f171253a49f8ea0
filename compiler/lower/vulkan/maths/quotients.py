"""Quotients rounded to the nearest; the error of the device's division may be 2.5 units in the last place."""

from __future__ import annotations

from heterocc.compiler.lower.vulkan.dtypes import FLOAT32
from heterocc.compiler.lower.vulkan.scalar import Scalar, select


def exact_quotient(a: Scalar, b: Scalar) -> Scalar:
    """a / b. In float32 it is rounded to the nearest, except near ties, unless a product of the two overflows.

    It is for quotients that are rounded to an integer: many devices multiply by a reciprocal, so that 41 / 41 is less
    than 1. The remainder of the device's quotient is computed exactly by Dekker's method, and its quotient is added as
    a correction.
    """
    quotient = a / b
    if a.dtype != FLOAT32:
        return quotient
    product, rest = exact_product(quotient, b)
    better = quotient + ((a - product) - rest) / b
    return select(better.below_infinity(), better, quotient)


def exact_product(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """The rounded product a · b and its rounding error, from halves of the factors (Dekker's method)."""
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def _upper_half(x: Scalar) -> Scalar:
    return (x.bits() & -0x1000).bitcast(FLOAT32)
