"""Exponentials and logarithms of float32."""

from __future__ import annotations

import math

from tvm import tirx

from heterocc.compiler.lower.cpu.maths.lanes import AVX512_LANES, FLOAT32, Value, polynomial, select
from heterocc.compiler.lower.kernels.approximations import EXP, LN2_HIGH, LN2_LOW, LOG

ROUND = 1.5 * 2**23
"""A float32 plus this number, minus this number, is rounded to an integer; the low bits of the sum are the integer.

Thus a conversion to an integer, which is undefined for NaN, is not needed.
"""

LEAST_NORMAL = -87.3
"""A number above the logarithm of the least float32 that is not subnormal."""

_ROOT_HALF_BITS = 0x3F3504F3


def exp(x: Value) -> Value:
    """e^x, within 1 ulp."""
    return exp_to(x, 89.0)


def exp_to(x: Value, high: float | None) -> Value:
    """e^x for x up to `high`, above which the caller returns infinity; None: x is at most 88."""
    bounded = x.at_least(-104.0)
    bounded = bounded if high is None else bounded.at_most(high)
    return scaled_exp(bounded, 0)


def scaled_exp(x: Value, shift: int) -> Value:
    """e^x · 2^shift for x from -104 to 90; a subnormal result is rounded once."""
    bits, n, r = reduced(x, 254 + shift)
    series = polynomial(r, (1.0, 1.0, *EXP))
    if series.lanes.whole_registers:
        return _scaled_by_instruction(series, n + float(shift) if shift else n)
    # Two factors: 2^n alone may overflow or underflow.
    half = bits >> 1
    return series * (half << 23).float_of_bits() * ((bits - half) << 23).float_of_bits()


def exp_normal(x: Value) -> Value:
    """e^x for x from -87.3 to 88, for which 2^n is one factor."""
    bits, _, r = reduced(x, 127)
    return polynomial(r, (1.0, 1.0, *EXP)) * (bits << 23).float_of_bits()


def reduced(x: Value, bias: int) -> tuple[Value, Value, Value]:
    """For n = round(x / ln 2): the bits of a float whose lowest are n + bias; n; and x - n · ln 2."""
    shifted = x.fma(math.log2(math.e), ROUND + bias)
    n = shifted - (ROUND + bias)
    return shifted.bits(), n, n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))


def log(x: Value) -> Value:
    """ln x, within 1 ulp."""
    tiny = x < 2.0**-126
    bits = select(tiny, x * 2.0**23, x).bits()
    exponent = (bits - _ROOT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).float_of_bits() - 1.0
    n = exponent.to(FLOAT32) - select(tiny, x.constant(23.0), 0.0)
    z = f * f
    small = polynomial(f, LOG).fma(z * f, n * LN2_LOW)
    result = n.fma(LN2_HIGH, f + z.fma(-0.5, small))
    return log_cases(x, result)


def log_cases(x: Value, result: Value) -> Value:
    """A logarithm of x with those of infinity, NaN, negative numbers and zero."""
    result = select(x < math.inf, result, x)
    result = select(x < 0.0, x.constant(math.nan), result)
    return select(x.equals(0.0), x.constant(-math.inf), result)


def _scaled_by_instruction(series: Value, n: Value) -> Value:
    every, rounding = tirx.IntImm("int16", -1), tirx.IntImm("int32", 4)  # no lane masked; the rounding mode in force

    def scaled(by: tirx.Expr, power: tirx.Expr) -> tirx.Expr:
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        return tirx.call_llvm_pure_intrin(f"{FLOAT32}x{AVX512_LANES}", name, by, power, by, every, rounding)

    return series.lanes.by_register(scaled, series.expr, n.expr)
