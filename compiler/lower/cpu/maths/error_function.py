"""The error function of float32."""

from __future__ import annotations

from tvm import tirx

from heterocc.compiler.lower.approximations import ERF_LOG_REST, ERF_NEAR, ERF_ONE, ERF_SPLIT, ERF_STEP, ERF_TABLE
from heterocc.compiler.lower.cpu.maths.exponential import ROUND, exp_normal
from heterocc.compiler.lower.cpu.maths.lanes import FLOAT32, Value, polynomial, select


def erf(x: Value) -> Value:
    """The error function, within 2 ulp."""
    if x.lanes.whole_register:
        return _from_table(x)
    size = x.magnitude()
    square = x * x
    near = polynomial(square, ERF_NEAR).fma(x, x)
    far = 1.0 - exp_normal(polynomial(size.at_most(ERF_ONE), ERF_LOG_REST))
    return select(size < ERF_SPLIT, near, far.with_sign_of(x))


def _from_table(x: Value) -> Value:
    """erf |x| by a polynomial for each of 16 intervals; one permutation selects the coefficients of all lanes."""
    size = x.magnitude().at_most((len(ERF_TABLE) - 0.51) * ERF_STEP)
    shifted = size.fma(1 / ERF_STEP, ROUND)  # its low four bits are the interval's number
    distance = (shifted - ROUND).fma(-ERF_STEP, size)
    interval = shifted.bits()

    def coefficient(power: int) -> Value:
        numbers = [tirx.FloatImm(FLOAT32, row[power]) for row in ERF_TABLE]
        table = tirx.Shuffle(numbers, [tirx.IntImm("int32", i) for i in range(len(numbers))])
        name = "llvm.x86.avx512.permvar.sf.512"
        picked = tirx.call_llvm_pure_intrin(x.lanes.dtype(FLOAT32), name, table, interval.expr)
        return x.lanes.bound(picked, FLOAT32)

    result = coefficient(5)
    for power in range(4, 0, -1):
        result = result.fma(distance, coefficient(power))
    # The first interval's constant is 0 and its linear term is without 1, which is the size itself.
    start = select(distance.equals(size), size, coefficient(0))
    return result.fma(distance, start).with_sign_of(x)
