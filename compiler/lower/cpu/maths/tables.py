"""Odd functions of float32 by polynomials for intervals; one permutation selects the coefficients of all lanes."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from heterocc.compiler.lower.cpu.maths.exponential import ROUND
from heterocc.compiler.lower.cpu.maths.lanes import AVX512_LANES, FLOAT32, Value


def by_interval(x: Value, table: Sequence[Sequence[float]], step: float) -> Value:
    """f(x) in whole registers of AVX-512; the last row holds for all |x| beyond the table.

    Row j of 16 or 32 is f(j · `step` + u) in u for |u| up to `step`/2; row 0 is without the linear term's 1.
    """
    size = x.magnitude().at_most((len(table) - 0.51) * step)
    shifted = size.fma(1 / step, ROUND)  # its low bits are the interval's number
    distance = (shifted - ROUND).fma(-step, size)
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

    return place.lanes.by_register(picked, place.expr)
