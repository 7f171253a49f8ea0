"""The arc sine and the arc cosine of float32."""

from __future__ import annotations

import math
from typing import Any

from heterocc.compiler.lower.kernels.approximations import ASIN
from heterocc.compiler.lower.kernels.functions.number import N, quartic, select

_PI_HIGH = 3.1415927410125732
_PI_LOW = math.pi - _PI_HIGH
"""π as the nearest float32, and the rest."""


def asin(x: N) -> N:
    """The arc sine, within 2 ulp; NaN beyond 1."""
    size = x.magnitude()
    root, rest, large = _arc_sine(size)
    far = (_PI_HIGH / 2 - (root + root)) + (_PI_LOW / 2 - (rest + rest))
    return select(large, far, root + rest).with_sign_of(x)


def acos(x: N) -> N:
    """The arc cosine, within 1 ulp; NaN beyond 1."""
    root, rest, large = _arc_sine(x.magnitude())
    near = _PI_HIGH / 2 - (x + (rest.negated_if(x) - _PI_LOW / 2))
    double = rest + rest
    far = select(x < 0.0, _PI_HIGH - ((root + root) + (double - _PI_LOW)), (root + root) + double)
    return select(large, far, near)


def _arc_sine(size: N) -> tuple[N, N, Any]:
    """The arc sine of `size` up to 1/2, else of the root of (1 - size) / 2, half of its complement; and which it is.

    It is the sum of two numbers, of which the second is small: what is left of the series, and of the root.
    """
    large = size > 0.5
    square = select(large, (1.0 - size) * 0.5, size * size)
    root = select(large, square.sqrt(), size)
    lost = (-root).fma(root, square) * 0.5 / root.at_least(1e-30)
    rest = quartic(square, ASIN) * (square * root)
    return root, select(large, rest + lost, rest), large
