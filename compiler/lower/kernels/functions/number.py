"""A number of which functions are computed: float32, or its bits as an integer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar


class Number(Protocol):
    """A float32 or an int32 in a register, or several in the lanes of one. Operators take Python's numbers, too.

    Comparisons give a condition, which `where` takes; it is true for no NaN.
    """

    def constant(self, number: float, /) -> Self:
        """A number of the same type."""

    def __add__(self, other: Self | float, /) -> Self: ...
    def __radd__(self, other: float, /) -> Self: ...
    def __sub__(self, other: Self | float, /) -> Self: ...
    def __rsub__(self, other: float, /) -> Self: ...
    def __mul__(self, other: Self | float, /) -> Self: ...
    def __truediv__(self, other: Self | float, /) -> Self: ...
    def __rtruediv__(self, other: float, /) -> Self: ...
    def __neg__(self) -> Self: ...
    def __lshift__(self, bits: int, /) -> Self: ...
    def __rshift__(self, bits: int, /) -> Self: ...
    def __lt__(self, other: Self | float, /) -> Any: ...
    def __gt__(self, other: Self | float, /) -> Any: ...
    def equals(self, other: Self | float, /) -> Any:
        """Whether two numbers are equal."""

    def where(self, condition: Any, /, no: Self | float) -> Self:
        """This number where a condition holds, else another; both are computed."""

    def fma(self, factor: Self | float, summand: Self | float, /) -> Self:
        """self · factor + summand, rounded once or twice."""

    def at_least(self, low: float, /) -> Self:
        """The larger of this and a number; NaN stays NaN."""

    def at_most(self, high: float, /) -> Self:
        """The smaller of this and a number; NaN stays NaN."""

    def sqrt(self) -> Self:
        """The square root; NaN for negative numbers."""

    def magnitude(self) -> Self:
        """|x|."""

    def with_sign_of(self, other: Self, /) -> Self:
        """A positive number with the sign of another."""

    def negated_if(self, other: Self, /) -> Self:
        """The number with its sign changed if that of another is negative."""

    def below_infinity(self) -> Any:
        """Whether a number is neither NaN nor infinity; of minus infinity either."""

    def bits(self) -> Self:
        """The bits of a float as an integer."""

    def float_of_bits(self) -> Self:
        """The float that has these bits."""

    def as_float(self) -> Self:
        """An integer's number as a float."""

    def rounded_to_integer(self, factor: float | None, bias: int, /) -> tuple[Self, Self]:
        """The integer nearest to self · factor (or self), and an integer whose lowest bits are its sum with a bias."""

    def times_power(self, n: Self, bits: Self, /) -> Self:
        """self · 2^n, rounded once if it is subnormal; the lowest bits of `bits` are n + 254."""


N = TypeVar("N", bound=Number)


def select(condition: Any, yes: N, no: N | float) -> N:
    """`yes` where a condition holds, else `no`; both are computed."""
    return yes.where(condition, no)


def polynomial(x: N, coefficients: Sequence[float]) -> N:
    """Horner's rule, lowest coefficient first."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.fma(x, coefficient)
    return result


def quartic(x: N, coefficients: Sequence[float]) -> N:
    """A polynomial with five coefficients, lowest first, in three steps instead of four (Estrin's scheme)."""
    zero, one, two, three, four = coefficients
    square = x * x
    low, high = x.constant(one).fma(x, zero), x.constant(three).fma(x, two)
    return x.constant(four).fma(square, high).fma(square, low)


def by_two_powers(number: N, bits: N) -> N:
    """number · 2^n, of which the lowest bits of `bits` are n + 254, by two factors: 2^n may overflow or underflow."""
    half = bits >> 1
    return number * (half << 23).float_of_bits() * ((bits - half) << 23).float_of_bits()
