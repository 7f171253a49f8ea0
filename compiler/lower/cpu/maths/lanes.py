"""Expressions over the lanes of a vector, in which each value is computed once and bound to a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm import tirx

FLOAT32, FLOAT64, INT32, INT64 = "float32", "float64", "int32", "int64"

AVX512_LANES = 16


@dataclass(slots=True)
class Lanes:
    """Builds one expression over `count` lanes (1: a scalar); `avx512`: whether 16 lanes are one register of AVX-512.

    Values are bound to names as they are computed; `closed` puts the names around the result. More lanes than a
    register has are several registers, which LLVM computes step by step together: none waits for another.
    """

    count: int
    avx512: bool = False
    _bound: list[tuple[tirx.Var, tirx.Expr]] = field(default_factory=list)

    @property
    def whole_registers(self) -> bool:
        """Whether instructions of AVX-512 for 16 float32 apply."""
        return self.avx512 and self.count % AVX512_LANES == 0

    def by_register(self, instruction: Callable[..., tirx.Expr], *values: tirx.Expr) -> Value:
        """The float32 results of an instruction for 16 lanes, in each register that these values fill."""
        if self.count == AVX512_LANES:
            return self.bound(instruction(*values), FLOAT32)
        parts = []
        for first in range(0, self.count, AVX512_LANES):
            lanes = list(range(first, first + AVX512_LANES))
            parts.append(instruction(*(tirx.Shuffle([value], lanes) for value in values)))
        return self.bound(tirx.Shuffle(parts, list(range(self.count))), FLOAT32)

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
        """self · factor + summand, rounded once if the CPU has such an instruction, else twice."""
        return self._new(tirx.op.fma(self.expr, self._other(factor), self._other(summand)))

    def at_least(self, low: float) -> Value:
        """The larger of this and a number; NaN stays NaN, as the instruction returns the second operand for NaN."""
        return self._new(tirx.Max(self.constant(low).expr, self.expr))

    def at_most(self, high: float) -> Value:
        """The smaller of this and a number; NaN stays NaN."""
        return self._new(tirx.Min(self.constant(high).expr, self.expr))

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


def select(condition: Condition, yes: Value, no: Value | float) -> Value:
    """One of two values in every lane; both are computed."""
    other = no if isinstance(no, Value) else yes.constant(no)
    return yes.lanes.bound(tirx.Select(condition.expr, yes.expr, other.expr), yes.element)


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule, lowest coefficient first."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.fma(x, coefficient)
    return result


def quartic(x: Value, coefficients: Sequence[float]) -> Value:
    """A polynomial with five coefficients, lowest first, in three steps instead of four (Estrin's scheme)."""
    zero, one, two, three, four = coefficients
    square = x * x
    low, high = x.constant(one).fma(x, zero), x.constant(three).fma(x, two)
    return x.constant(four).fma(square, high).fma(square, low)
