"""Integer division and remainder as TVM defines them, and bit counts.

SPIR-V's remainders are undefined in Vulkan for negative operands, so they are computed from quotients.
"""

from __future__ import annotations

from heterocc.compiler.lower.vulkan.dtypes import BOOL, INT32, UINT32, DType, UnsupportedError
from heterocc.compiler.lower.vulkan.maths.functions import remainder
from heterocc.compiler.lower.vulkan.maths.quotients import exact_quotient
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import Glsl, Op


def truncated_mod(a: Scalar, b: Scalar) -> Scalar:
    """The remainder of division towards zero, with the sign of `a`; of floats, C's fmod."""
    return remainder(a, b) if a.dtype.is_float else a - (a / b) * b


def floor_div(a: Scalar, b: Scalar) -> Scalar:
    """The quotient rounded down."""
    if a.dtype.is_float:
        return exact_quotient(a, b).glsl(Glsl.FLOOR)
    quotient = a / b
    if a.dtype.kind == "uint":
        return quotient
    shift = _exponent_of_two(b)
    if shift is not None:
        return a >> shift
    rest = a - quotient * b
    return select(_other_sign(rest, b), quotient - 1, quotient)


def floor_mod(a: Scalar, b: Scalar) -> Scalar:
    """The remainder of division rounded down, with the sign of `b`."""
    if a.dtype.kind == "int" and _exponent_of_two(b) is not None:
        return a & (b - 1)
    rest = truncated_mod(a, b)
    return rest if a.dtype.kind == "uint" else select(_other_sign(rest, b), rest + b, rest)


def absolute(a: Scalar) -> Scalar:
    """The absolute value; that of the least integer is that integer itself."""
    if a.dtype.is_float:
        return a.glsl(Glsl.F_ABS)
    if a.dtype == BOOL:
        raise UnsupportedError("the absolute value of bool")
    return a if a.dtype.kind == "uint" else select(a < 0, -a, a)


def leading_zeros(a: Scalar) -> Scalar:
    """The number of zero bits above the highest one, as int32; for zero the width."""
    if a.dtype.bits > 32:
        low, high = _halves(a)
        return select(high.equals(0), _leading_zeros(low) + 32, _leading_zeros(high))
    return _leading_zeros(_unsigned(a).to(UINT32)) - (32 - a.dtype.bits)


def population(a: Scalar) -> Scalar:
    """The number of one bits, in the type of `a`."""
    words = _halves(a) if a.dtype.bits > 32 else (_unsigned(a).to(UINT32),)
    total = a.constant(0, UINT32)
    for word in words:
        type_ = UINT32.compute(a.body.module)
        total = total + Scalar(a.body, UINT32, a.body.pure(Op.BIT_COUNT, type_, word.id))
    return total.to(a.dtype)


def _leading_zeros(word: Scalar) -> Scalar:
    """The number of leading zeros of a uint32; the highest bit of zero has the index -1."""
    return 31 - word.glsl(Glsl.FIND_U_MSB).bitcast(INT32)


def _unsigned(a: Scalar) -> Scalar:
    return a.bitcast(DType("uint", a.dtype.bits))


def _halves(a: Scalar) -> tuple[Scalar, Scalar]:
    """The low and the high word of 64 bits."""
    bits = _unsigned(a)
    return bits.to(UINT32), (bits >> 32).to(UINT32)


def _exponent_of_two(b: Scalar) -> int | None:
    """n if b is the constant 2^n, else None."""
    number = b.known
    if not isinstance(number, int) or number <= 0 or number & (number - 1):
        return None
    return number.bit_length() - 1


def _other_sign(rest: Scalar, divisor: Scalar) -> Scalar:
    """Whether a remainder is not zero and its sign differs from that of its divisor."""
    if rest.dtype.is_float:
        return rest.differs(0) & (rest < 0).differs(divisor < 0)
    return rest.differs(0) & ((rest ^ divisor) < 0)
