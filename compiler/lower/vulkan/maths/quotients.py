"""Quotients that are rounded to the nearest: those of the device may be 2.5 units of the last place off."""

from __future__ import annotations

from heterocc.compiler.lower.vulkan.dtypes import FLOAT32
from heterocc.compiler.lower.vulkan.maths.basic import bits_of, is_finite
from heterocc.compiler.lower.vulkan.scalar import Scalar, select


def exact_quotient(a: Scalar, b: Scalar) -> Scalar:
    """a / b; of float32 rounded to the nearest but for near ties, unless a product of the two overflows.

    For what rounds a quotient to an integer: many devices multiply by a reciprocal, so that 41 / 41 is less than 1.
    What the device's quotient leaves of a is known exactly, by Dekker's method; divided again, it corrects that.
    """
    quotient = a / b
    if a.dtype != FLOAT32:
        return quotient
    product, rest = exact_product(quotient, b)
    better = quotient + ((a - product) - rest) / b
    return select(is_finite(better), better, quotient)


def exact_product(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """a · b rounded, and what rounding took away; from halves of the factors (Dekker's method)."""
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def _upper_half(x: Scalar) -> Scalar:
    return (bits_of(x) & -0x1000).bitcast(FLOAT32)
