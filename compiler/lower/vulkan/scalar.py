"""Scalars in registers with overloaded operators, so that code generation reads like the formulas it generates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from heterocc.compiler.lower.kernels.functions.number import by_two_powers
from heterocc.compiler.lower.vulkan.body import Body
from heterocc.compiler.lower.vulkan.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    UINT32,
    DType,
    Number,
    UnsupportedError,
)
from heterocc.compiler.lower.vulkan.spirv import ROUND_TO_NEAREST_EVEN, Decoration, Glsl, Op

_BINARY: dict[str, tuple[Op, Op, Op]] = {  # float, int, uint
    "+": (Op.F_ADD, Op.I_ADD, Op.I_ADD),
    "-": (Op.F_SUB, Op.I_SUB, Op.I_SUB),
    "*": (Op.F_MUL, Op.I_MUL, Op.I_MUL),
    "/": (Op.F_DIV, Op.S_DIV, Op.U_DIV),
}
_COMPARE: dict[str, tuple[Op, Op, Op, Op | None]] = {  # float, int, uint, bool
    "==": (Op.F_ORD_EQUAL, Op.I_EQUAL, Op.I_EQUAL, Op.LOGICAL_EQUAL),
    "!=": (Op.F_UNORD_NOT_EQUAL, Op.I_NOT_EQUAL, Op.I_NOT_EQUAL, Op.LOGICAL_NOT_EQUAL),
    "<": (Op.F_ORD_LESS, Op.S_LESS, Op.U_LESS, None),
    "<=": (Op.F_ORD_LESS_EQUAL, Op.S_LESS_EQUAL, Op.U_LESS_EQUAL, None),
    ">": (Op.F_ORD_GREATER, Op.S_GREATER, Op.U_GREATER, None),
    ">=": (Op.F_ORD_GREATER_EQUAL, Op.S_GREATER_EQUAL, Op.U_GREATER_EQUAL, None),
}
_BITWISE: dict[str, tuple[Op, Op | None]] = {  # integers, bool
    "&": (Op.BITWISE_AND, Op.LOGICAL_AND),
    "|": (Op.BITWISE_OR, Op.LOGICAL_OR),
    "^": (Op.BITWISE_XOR, Op.LOGICAL_NOT_EQUAL),
    "<<": (Op.SHIFT_LEFT_LOGICAL, None),
}
_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
_KIND = {"float": 0, "int": 1, "uint": 2, "bool": 3}


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A value in a register; `known` is its number if it is a constant.

    Operators take scalars of one type, or numbers, which become constants of that type. Drivers must not contract float
    arithmetic, except that of `times`, `plus` and `minus`, where a product may be fused with a sum. Comparisons with
    NaN are false, except `differs`. `narrow` is the value that a 64-bit integer was widened from, `wide` the value that
    a float16 was converted from.
    """

    body: Body
    dtype: DType
    id: int
    known: Number | None = None
    narrow: Scalar | None = None
    wide: Scalar | None = None

    def constant(self, value: Number, dtype: DType | None = None) -> Scalar:
        """A constant of type `dtype`, or else of this scalar's type."""
        return constant(self.body, dtype or self.dtype, value)

    def _other(self, other: Scalar | Number) -> Scalar:
        if not isinstance(other, Scalar):
            return self.constant(other)
        if other.dtype != self.dtype:
            raise AssertionError(f"operands of types {self.dtype.name} and {other.dtype.name}")
        return other

    def _binary(self, sign: str, other: Scalar | Number, exact: bool = True) -> Scalar:
        right = self._other(other)
        if self.dtype.is_integer:
            folded = _folded(sign, self, right)
            if folded is not None:
                return folded
        elif not self.dtype.is_float:
            raise UnsupportedError(f"'{sign}' of {self.dtype.name} values")
        op = _BINARY[sign][_KIND[self.dtype.kind]]
        type_ = self.dtype.compute(self.body.module)
        result = self.body.pure(op, type_, self.id, right.id, exact=exact and self.dtype.is_float)
        return Scalar(self.body, self.dtype, result)

    def __add__(self, other: Scalar | Number) -> Scalar:
        return self._binary("+", other)

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return self._binary("-", other)

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return self._binary("*", other)

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        """The quotient; that of integers is rounded towards zero."""
        return self._binary("/", other)

    def __radd__(self, other: Number) -> Scalar:
        return self.constant(other) + self

    def __rsub__(self, other: Number) -> Scalar:
        return self.constant(other) - self

    def __rmul__(self, other: Number) -> Scalar:
        return self.constant(other) * self

    def __rtruediv__(self, other: Number) -> Scalar:
        return self.constant(other) / self

    def times(self, other: Scalar) -> Scalar:
        """A product that may be fused with the sum that uses it."""
        return self._binary("*", other, exact=False)

    def plus(self, other: Scalar) -> Scalar:
        """A sum that may be fused with a product in it."""
        return self._binary("+", other, exact=False)

    def minus(self, other: Scalar) -> Scalar:
        """A difference that may be fused with a product in it."""
        return self._binary("-", other, exact=False)

    def __neg__(self) -> Scalar:
        op = Op.F_NEGATE if self.dtype.is_float else Op.S_NEGATE
        return self._unary(op)

    def __invert__(self) -> Scalar:
        return self._unary(Op.LOGICAL_NOT if self.dtype == BOOL else Op.NOT)

    def _unary(self, op: Op) -> Scalar:
        type_ = self.dtype.compute(self.body.module)
        return Scalar(self.body, self.dtype, self.body.pure(op, type_, self.id))

    def _compare(self, sign: str, other: Scalar | Number) -> Scalar:
        right = self._other(other)
        # Mesa 22.3 computes `x < 0 ? x + 50 : x` as x for any x that was widened from 32 bits.
        if self.narrow is not None and _is_int32(right):
            return self.narrow._compare(sign, self.narrow.constant(right.known or 0))
        if right.narrow is not None and _is_int32(self):
            return right.narrow.constant(self.known or 0)._compare(sign, right.narrow)
        op = _COMPARE[sign][_KIND[self.dtype.kind]]
        if op is None:
            raise UnsupportedError(f"'{sign}' of {self.dtype.name} values")
        self.dtype.compute(self.body.module)
        type_ = BOOL.declare(self.body.module)
        return Scalar(self.body, BOOL, self.body.pure(op, type_, self.id, right.id))

    def __lt__(self, other: Scalar | Number) -> Scalar:
        return self._compare("<", other)

    def __le__(self, other: Scalar | Number) -> Scalar:
        return self._compare("<=", other)

    def __gt__(self, other: Scalar | Number) -> Scalar:
        return self._compare(">", other)

    def __ge__(self, other: Scalar | Number) -> Scalar:
        return self._compare(">=", other)

    def equals(self, other: Scalar | Number) -> Scalar:
        """Whether both are equal."""
        return self._compare("==", other)

    def differs(self, other: Scalar | Number) -> Scalar:
        """Whether they are unequal, or one is NaN."""
        return self._compare("!=", other)

    def _bitwise(self, sign: str, other: Scalar | Number) -> Scalar:
        right = self._other(other)
        integer, logical = _BITWISE[sign]
        op = logical if self.dtype == BOOL else integer
        if op is None or self.dtype.is_float:
            raise UnsupportedError(f"'{sign}' of {self.dtype.name} values")
        type_ = self.dtype.compute(self.body.module)
        return Scalar(self.body, self.dtype, self.body.pure(op, type_, self.id, right.id))

    def __and__(self, other: Scalar | Number) -> Scalar:
        return self._bitwise("&", other)

    def __or__(self, other: Scalar | Number) -> Scalar:
        return self._bitwise("|", other)

    def __xor__(self, other: Scalar | Number) -> Scalar:
        return self._bitwise("^", other)

    def __lshift__(self, other: Scalar | Number) -> Scalar:
        return self._bitwise("<<", other)

    def __rshift__(self, other: Scalar | Number) -> Scalar:
        """The shift to the right, which is arithmetic for signed integers."""
        right = self._other(other)
        op = Op.SHIFT_RIGHT_ARITHMETIC if self.dtype.kind == "int" else Op.SHIFT_RIGHT_LOGICAL
        type_ = self.dtype.compute(self.body.module)
        return Scalar(self.body, self.dtype, self.body.pure(op, type_, self.id, right.id))

    def glsl(self, function: Glsl, *others: Scalar) -> Scalar:
        """A function of GLSL.std.450 of this and others, with a result of this type."""
        type_ = self.dtype.compute(self.body.module)
        operands = (self.id, *(o.id for o in others))
        result = self.body.pure(Op.EXT_INST, type_, self.body.module.glsl, function, *operands)
        return Scalar(self.body, self.dtype, result)

    def where(self, condition: Scalar, no: Scalar | Number) -> Scalar:
        """This value if a condition holds, else another; both are computed."""
        return select(condition, self, no)

    def fma(self, factor: Scalar | Number, summand: Scalar | Number) -> Scalar:
        """self · factor + summand, rounded twice."""
        return self * factor + summand

    def at_least(self, low: float) -> Scalar:
        """The larger of this and a number; NaN stays NaN."""
        return self.constant(low).where(self < low, self)

    def at_most(self, high: float) -> Scalar:
        """The smaller of this and a number; NaN stays NaN."""
        return self.constant(high).where(self > high, self)

    def sqrt(self) -> Scalar:
        """The device's square root, within 3 ulp; NaN for negative numbers. Any float type."""
        return self.constant(math.nan).where(self < 0.0, self.glsl(Glsl.SQRT))

    def magnitude(self) -> Scalar:
        """|x|. Any float type."""
        return self.glsl(Glsl.F_ABS)

    def with_sign_of(self, other: Scalar) -> Scalar:
        """A float32 with the sign of another."""
        return ((self.bits() & 0x7FFFFFFF) | (other.bits() & -0x80000000)).float_of_bits()

    def negated_if(self, other: Scalar) -> Scalar:
        """A float32 with its sign changed if that of another is negative."""
        return (self.bits() ^ (other.bits() & -0x80000000)).float_of_bits()

    def below_infinity(self) -> Scalar:
        """Whether a float32 is neither NaN nor infinite, by its bits: drivers may assume that operands are not NaN."""
        return (self.bits() & 0x7FFFFFFF) < 0x7F800000

    def bits(self) -> Scalar:
        """The bits of a float32 as an int32."""
        return self.bitcast(INT32)

    def float_of_bits(self) -> Scalar:
        """The float32 that has these bits."""
        return self.bitcast(FLOAT32)

    def as_float(self) -> Scalar:
        """An integer as a float32."""
        return self.to(FLOAT32)

    def rounded_to_integer(self, factor: float | None, bias: int) -> tuple[Scalar, Scalar]:
        """The integer nearest to self · factor, and its sum with a bias as an int32."""
        n = (self if factor is None else self * factor).glsl(Glsl.ROUND_EVEN)
        return n, n.to(INT32) + bias

    def times_power(self, n: Scalar, bits: Scalar) -> Scalar:
        """self · 2^n; `bits` is n + 254."""
        return by_two_powers(self, bits)

    def bitcast(self, dtype: DType) -> Scalar:
        """The same bits as another type of equal size."""
        if dtype == self.dtype:
            return self
        if dtype.bits != self.dtype.bits or BOOL in (dtype, self.dtype):
            raise UnsupportedError(f"a bit cast from {self.dtype.name} to {dtype.name}")
        self.dtype.compute(self.body.module)
        type_ = dtype.compute(self.body.module)
        return Scalar(self.body, dtype, self.body.pure(Op.BITCAST, type_, self.id))

    def to(self, dtype: DType) -> Scalar:
        """The value as another type, rounded towards zero from float to integer, modulo 2^n between integers."""
        return _converted(self, dtype)

    def rounded(self) -> Scalar:
        """The value rounded to the nearest float16, for stores to storage buffers only.

        Drivers choose the rounding of other conversions. SPIR-V allows code to choose it only if all uses of the result
        are such stores, so this instruction is not shared.
        """
        converted = _cast(self, Op.F_CONVERT, FLOAT16, shared=False)
        self.body.module.decorate(converted.id, Decoration.FP_ROUNDING_MODE, ROUND_TO_NEAREST_EVEN)
        return converted


def constant(body: Body, dtype: DType, value: Number) -> Scalar:
    """A constant."""
    if dtype.is_integer:
        value = _wrapped(dtype, int(value))
    key = (dtype, float(value).hex() if dtype.is_float else int(value))  # -0.0 equals 0.0
    found = body.constants.get(key)
    if found is None:
        found = body.constants[key] = dtype.constant(body.module, value)
    return Scalar(body, dtype, found, value)


def select(condition: Scalar, left: Scalar, right: Scalar | Number) -> Scalar:
    """`left` if the condition holds, else `right`; both are computed."""
    other = right if isinstance(right, Scalar) else left.constant(right)
    if left.dtype != other.dtype:
        raise AssertionError(f"a choice between {left.dtype.name} and {other.dtype.name}")
    if left.id == other.id:
        return left
    type_ = left.dtype.compute(left.body.module)
    return Scalar(left.body, left.dtype, left.body.pure(Op.SELECT, type_, condition.id, left.id, other.id))


def _is_int32(value: Scalar) -> bool:
    """Whether a value is a constant in the range of int32."""
    return value.known is not None and -(1 << 31) <= int(value.known) < 1 << 31


def _wrapped(dtype: DType, value: int) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def _folded(sign: str, left: Scalar, right: Scalar) -> Scalar | None:
    """The result of an integer operation that is known when compiling, or None."""
    if left.known is not None and right.known is not None and sign in _FOLD:
        return left.constant(_FOLD[sign](int(left.known), int(right.known)))
    if right.known == {"+": 0, "-": 0, "*": 1, "/": 1}[sign] and right.known is not None:
        return left
    if left.known is not None and left.known == {"+": 0, "*": 1}.get(sign):
        return right
    return None


def _converted(value: Scalar, dtype: DType) -> Scalar:
    source = value.dtype
    if source == dtype:
        return value
    if value.known is not None and (dtype.is_integer or dtype == BOOL) and not source.is_float:
        return value.constant(value.known, dtype)
    if dtype == BOOL:
        # The device may support small types for storage only, not for arithmetic.
        wide = value.to(DType(source.kind, 32)) if source.bits < 32 else value
        return wide.differs(0)
    if source == BOOL:
        if dtype.is_integer and dtype.bits < 32:
            return select(value, value.constant(1, UINT32), 0).to(dtype)
        return select(value, value.constant(1, dtype), 0)
    if source.is_float and dtype.is_float:
        if source.bits == 64 and dtype == FLOAT16:
            value = _rounded_to_odd(value)  # some drivers convert through float32, which would round twice
        converted = _cast(value, Op.F_CONVERT, dtype)
        return replace(converted, wide=value) if dtype == FLOAT16 else converted
    if source.is_float:
        # Convert to narrow integers through 32 bits, so that a float out of range wraps as on CPUs.
        whole = dtype if dtype.bits >= 32 else INT32
        return _cast(value, Op.CONVERT_F_TO_S if whole.kind == "int" else Op.CONVERT_F_TO_U, whole).to(dtype)
    if dtype.is_float:
        wide_value = value if source.bits >= 32 else value.to(DType(source.kind, 32))
        return _cast(wide_value, Op.CONVERT_S_TO_F if source.kind == "int" else Op.CONVERT_U_TO_F, dtype)
    if source.bits == dtype.bits:
        return value.bitcast(dtype)
    if source.kind == dtype.kind:
        converted = _cast(value, Op.S_CONVERT if source.kind == "int" else Op.U_CONVERT, dtype)
        return replace(converted, narrow=value) if (source, dtype.bits) == (INT32, 64) else converted
    # The source's sign determines the extension. A narrow type as target is only declared, as it needs no arithmetic.
    if dtype.bits < source.bits:
        return value.bitcast(DType(dtype.kind, source.bits)).to(dtype)
    return value.to(DType(source.kind, dtype.bits)).bitcast(dtype)


def _rounded_to_odd(value: Scalar) -> Scalar:
    """The float32 next to a float64 whose last bit is 1, or the float64 itself where float32 can hold it.

    Rounding this number to a type of at most 22 bits of precision gives what rounding the float64 once gives.
    Source: S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
    odd", IEEE Transactions on Computers 57(4), 2008.
    """
    near = value.to(FLOAT32)
    back, bits = near.to(FLOAT64), near.bitcast(UINT32)
    inexact = (back < value) | (back > value)  # false for NaN
    even = (bits & 1).equals(0)
    too_large = select(value > 0, back, -back) > select(value > 0, value, -value)
    moved = select(too_large, bits - 1, bits + 1)
    return select(inexact & even, moved, bits).bitcast(FLOAT32)


def _cast(value: Scalar, op: Op, dtype: DType, shared: bool = True) -> Scalar:
    module, write = value.body.module, value.body.pure if shared else value.body.fresh
    value.dtype.computed(module)
    dtype.computed(module)
    return Scalar(value.body, dtype, write(op, dtype.declare(module), value.id))
