"""Instructions of AVX-512 for 16 lanes: powers of two, and polynomials for intervals of odd functions.

One permutation selects the coefficients of all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, ROUND32, Value

AVX512_LANES = 16


def scaled_by_instruction(value: Value, n: Value) -> Value:
    """value · 2^n, rounded once."""
    every, rounding = tirx.IntImm("int16", -1), tirx.IntImm("int32", 4)  # no lane masked; the rounding mode in force

    def scaled(by: tirx.Expr, power: tirx.Expr) -> tirx.Expr:
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        return tirx.call_llvm_pure_intrin(f"{FLOAT32}x{AVX512_LANES}", name, by, power, by, every, rounding)

    return _by_register(scaled, value, n)


def by_interval(x: Value, table: Sequence[Sequence[float]], step: float) -> Value:
    """f(x) in whole registers of AVX-512; the last row holds for all |x| beyond the table.

    Row j of 16 or 32 is f(j · `step` + u) in u for |u| up to `step`/2; row 0 is without the linear term's 1.
    """
    size = x.magnitude().at_most((len(table) - 0.51) * step)
    shifted = size.fma(1 / step, ROUND32)  # its low bits are the interval's number
    distance = (shifted - ROUND32).fma(-step, size)
    interval = shifted.bits()

    def coefficient(power: int) -> Value:
        return _picked([row[power] for row in table], interval)

    degree = len(table[0]) - 1
    result = coefficient(degree)
    for power in range(degree - 1, 0, -1):
        result = result.fma(distance, coefficient(power))
    # The first interval's constant is 0 and its linear term is without 1, which is the size itself.
    start = x.lanes.bound(tirx.Select(distance.equals(size).expr, size.expr, coefficient(0).expr), FLOAT32)
    return result.fma(distance, start).with_sign_of(x)


def _picked(numbers: Sequence[float], place: Value) -> Value:
    """The numbers at the places in the low bits of each lane."""
    registers = [
        tirx.Shuffle([tirx.FloatImm(FLOAT32, n) for n in numbers[at : at + AVX512_LANES]], list(range(AVX512_LANES)))
        for at in range(0, len(numbers), AVX512_LANES)
    ]
    name = "llvm.x86.avx512." + ("permvar.sf.512" if len(registers) == 1 else "vpermi2var.ps.512")

    def picked(places: tirx.Expr) -> tirx.Expr:
        return tirx.call_llvm_pure_intrin(f"{FLOAT32}x{AVX512_LANES}", name, registers[0], places, *registers[1:])

    return _by_register(picked, place)


def _by_register(instruction: Callable[..., tirx.Expr], *values: Value) -> Value:
    """The float32 results of an instruction for 16 lanes, in each register that these values fill."""
    lanes, exprs = values[0].lanes, [value.expr for value in values]
    if lanes.count == AVX512_LANES:
        return lanes.bound(instruction(*exprs), FLOAT32)
    parts = []
    for first in range(0, lanes.count, AVX512_LANES):
        places = list(range(first, first + AVX512_LANES))
        parts.append(instruction(*(tirx.Shuffle([expr], places) for expr in exprs)))
    return lanes.bound(tirx.Shuffle(parts, list(range(lanes.count))), FLOAT32)
