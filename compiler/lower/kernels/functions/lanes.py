"""Expressions over the lanes of a vector, in which each value is computed once and bound to a name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tvm import tirx

from heterocc.compiler.lower.kernels.functions.number import by_two_powers

FLOAT32, FLOAT64, INT32, INT64 = "float32", "float64", "int32", "int64"

ROUND32, ROUND64 = 1.5 * 2**23, 1.5 * 2**52
"""A float plus this number, minus this number, is rounded to an integer; the low bits of the sum are the integer.

Thus a conversion to an integer, which is undefined for NaN, is not needed.
"""


@dataclass(slots=True)
class Lanes:
    """Builds one expression over `count` lanes (1: a scalar).

    Values are bound to names as they are computed; `closed` puts the names around the result. `scaled`, if it is given,
    is an instruction that multiplies a value by 2 to the power of another. `fused` is whether code generation knows a
    fused multiply-add.
    """

    count: int
    scaled: Callable[[Value, Value], Value] | None = None
    fused: bool = True
    _bound: list[tuple[tirx.Var, tirx.Expr]] = field(default_factory=list)

    def dtype(self, element: str) -> str:
        """TVM's name of a vector of `element`."""
        return element if self.count == 1 else f"{element}x{self.count}"

    def argument(self, expr: tirx.Expr) -> Value:
        """A float32 argument of the function; a number stays one."""
        number = expr.value if isinstance(expr, tirx.Broadcast) else expr
        return Value(self, expr, FLOAT32) if isinstance(number, tirx.FloatImm) else self.bound(expr, FLOAT32)

    def bound(self, expr: tirx.Expr, element: str) -> Value:
        """An expression as a value that is computed once."""
        var = tirx.Var(f"m{len(self._bound)}", expr.ty)
        self._bound.append((var, expr))
        return Value(self, var, element)

    def closed(self, result: Value) -> tirx.Expr:
        """The expression of a value inside the bindings of all names that it uses."""
        expr = result.expr
        for var, value in reversed(self._bound):
            expr = tirx.Let(var, value, expr)
        return expr

    def constant(self, number: float, element: str = FLOAT32) -> Value:
        """A number in every lane."""
        if element in (INT32, INT64):
            scalar: tirx.Expr = tirx.IntImm(element, int(number))
        else:
            with np.errstate(over="ignore"):
                scalar = tirx.FloatImm(element, float(np.dtype(element).type(number)))
        return Value(self, scalar if self.count == 1 else tirx.Broadcast(scalar, self.count), element)


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison in every lane. It is not bound to a name: TVM 0.27 fails on names for vectors of booleans."""

    expr: tirx.Expr

    def __and__(self, other: Condition) -> Condition:
        return Condition(tirx.And(self.expr, other.expr))

    def __or__(self, other: Condition) -> Condition:
        return Condition(tirx.Or(self.expr, other.expr))


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A number in every lane; `element` is its type. Operators take values of the same type and Python's numbers."""

    lanes: Lanes
    expr: tirx.Expr
    element: str

    def _other(self, other: Value | float) -> tirx.Expr:
        return other.expr if isinstance(other, Value) else self.constant(other).expr

    def constant(self, number: float) -> Value:
        """A number of this type in every lane."""
        return self.lanes.constant(number, self.element)

    def _new(self, expr: tirx.Expr) -> Value:
        return self.lanes.bound(expr, self.element)

    def __add__(self, other: Value | float) -> Value:
        return self._new(tirx.Add(self.expr, self._other(other)))

    def __radd__(self, other: float) -> Value:
        return self._new(tirx.Add(self._other(other), self.expr))

    def __sub__(self, other: Value | float) -> Value:
        return self._new(tirx.Sub(self.expr, self._other(other)))

    def __rsub__(self, other: float) -> Value:
        return self._new(tirx.Sub(self._other(other), self.expr))

    def __mul__(self, other: Value | float) -> Value:
        return self._new(tirx.Mul(self.expr, self._other(other)))

    def __truediv__(self, other: Value | float) -> Value:
        return self._new(tirx.Div(self.expr, self._other(other)))

    def __rtruediv__(self, other: float) -> Value:
        return self._new(tirx.Div(self._other(other), self.expr))

    def __neg__(self) -> Value:
        return -0.0 - self  # a plain 0 would give 0 for 0, not -0

    def __and__(self, other: Value | int) -> Value:
        return self._new(tirx.bitwise_and(self.expr, self._other(other)))

    def __or__(self, other: Value | int) -> Value:
        return self._new(tirx.bitwise_or(self.expr, self._other(other)))

    def __xor__(self, other: Value | int) -> Value:
        return self._new(tirx.bitwise_xor(self.expr, self._other(other)))

    def __lshift__(self, bits: int) -> Value:
        return self._new(tirx.shift_left(self.expr, self._other(bits)))

    def __rshift__(self, bits: int) -> Value:
        return self._new(tirx.shift_right(self.expr, self._other(bits)))

    def __lt__(self, other: Value | float) -> Condition:
        return Condition(tirx.LT(self.expr, self._other(other)))

    def __gt__(self, other: Value | float) -> Condition:
        return Condition(tirx.GT(self.expr, self._other(other)))

    def __ge__(self, other: Value | float) -> Condition:
        return Condition(tirx.GE(self.expr, self._other(other)))

    def equals(self, other: Value | float) -> Condition:
        """Whether two numbers are equal, lane by lane."""
        return Condition(tirx.EQ(self.expr, self._other(other)))

    def differs(self, other: Value | float) -> Condition:
        """Whether two numbers are not equal; NaN differs from itself."""
        return Condition(tirx.NE(self.expr, self._other(other)))

    def fma(self, factor: Value | float, summand: Value | float) -> Value:
        """self · factor + summand, rounded once if the device has such an instruction, else twice."""
        if not self.lanes.fused:
            return self * factor + summand
        return self._new(tirx.op.fma(self.expr, self._other(factor), self._other(summand)))

    def at_least(self, low: float) -> Value:
        """The larger of this and a number; NaN stays NaN, as the instruction returns the second operand for NaN."""
        return self._new(tirx.Max(self.constant(low).expr, self.expr))

    def at_most(self, high: float) -> Value:
        """The smaller of this and a number; NaN stays NaN."""
        return self._new(tirx.Min(self.constant(high).expr, self.expr))

    def where(self, condition: Condition, no: Value | float) -> Value:
        """This value where a condition holds, else another; both are computed."""
        return self._new(tirx.Select(condition.expr, self.expr, self._other(no)))

    def below_infinity(self) -> Condition:
        """Whether a number is neither NaN nor infinity."""
        return self < math.inf

    def as_float(self) -> Value:
        """An int32 as a float32."""
        return self.to(FLOAT32)

    def rounded_to_integer(self, factor: float | None, bias: int) -> tuple[Value, Value]:
        """The integer nearest to self · factor, and an integer whose lowest bits are its sum with a bias."""
        shift = ROUND32 + bias
        shifted = self + shift if factor is None else self.fma(factor, shift)
        return shifted - shift, shifted.bits()

    def times_power(self, n: Value, bits: Value) -> Value:
        """self · 2^n, rounded once if it is subnormal; the lowest bits of `bits` are n + 254."""
        return by_two_powers(self, bits) if self.lanes.scaled is None else self.lanes.scaled(self, n)

    def sqrt(self) -> Value:
        """The square root, rounded to the nearest."""
        return self._new(tirx.sqrt(self.expr))

    def nearest(self) -> Value:
        """The nearest integer, the even one of two."""
        return self._new(tirx.nearbyint(self.expr))

    def trunc(self) -> Value:
        """The integer towards zero."""
        return self._new(tirx.trunc(self.expr))

    def to(self, element: str) -> Value:
        """The number in another type. A float converted to an integer must be in its range and not NaN."""
        return self.lanes.bound(tirx.Cast(self.lanes.dtype(element), self.expr), element)

    def largest_lane(self) -> tirx.Expr:
        """The largest of all lanes, as a scalar; of a vector of float32 that are not negative and not NaN."""
        name = f"llvm.vector.reduce.umax.v{self.lanes.count}i32"
        return tirx.reinterpret(FLOAT32, tirx.call_llvm_pure_intrin(INT32, name, self.bits().expr))

    def bits(self) -> Value:
        """The bits of a float as an integer of the same width."""
        element = {FLOAT32: INT32, FLOAT64: INT64}[self.element]
        return self.lanes.bound(tirx.reinterpret(self.lanes.dtype(element), self.expr), element)

    def float_of_bits(self) -> Value:
        """The float that has these bits."""
        element = {INT32: FLOAT32, INT64: FLOAT64}[self.element]
        return self.lanes.bound(tirx.reinterpret(self.lanes.dtype(element), self.expr), element)

    def magnitude(self) -> Value:
        """|x|."""
        mask = 0x7FFFFFFF if self.element == FLOAT32 else 0x7FFFFFFFFFFFFFFF
        return (self.bits() & mask).float_of_bits()

    def negated_if(self, other: Value) -> Value:
        """A float32 with its sign changed if that of another is negative."""
        return (self.bits() ^ (other.bits() & -0x80000000)).float_of_bits()

    def with_sign_of(self, other: Value) -> Value:
        """A positive float32 with the sign of another."""
        return (self.bits() | (other.bits() & -0x80000000)).float_of_bits()
