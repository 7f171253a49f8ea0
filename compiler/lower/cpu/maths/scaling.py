"""Powers of two by an instruction of AVX-512 for 16 lanes."""

from __future__ import annotations

from tvm import tirx

from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, Value

AVX512_LANES = 16


def scaled_by_instruction(value: Value, n: Value) -> Value:
    """value · 2^n, rounded once, in each register that the lanes fill."""
    every, rounding = tirx.IntImm("int16", -1), tirx.IntImm("int32", 4)  # no lane masked; the rounding mode in force

    def scaled(by: tirx.Expr, power: tirx.Expr) -> tirx.Expr:
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        return tirx.call_llvm_pure_intrin(f"{FLOAT32}x{AVX512_LANES}", name, by, power, by, every, rounding)

    lanes = value.lanes
    if lanes.count == AVX512_LANES:
        return lanes.bound(scaled(value.expr, n.expr), FLOAT32)
    registers = [list(range(first, first + AVX512_LANES)) for first in range(0, lanes.count, AVX512_LANES)]
    parts = [scaled(tirx.Shuffle([value.expr], places), tirx.Shuffle([n.expr], places)) for places in registers]
    return lanes.bound(tirx.Shuffle(parts, list(range(lanes.count))), FLOAT32)
