"""Numbers as integers of 32 bits in the same order."""

from __future__ import annotations

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit


def ordered(value: tirx.Expr, dtype: str, lanes: int, *, largest: bool) -> tirx.Expr:
    """Vectors of float32 or int32 as integers, the larger the better; equal for -0 and 0, NaN above all numbers."""

    def const(number: int) -> tirx.Expr:
        return emit.broadcast(tirx.const(number, "int32"), lanes)

    if dtype == "int32":
        return value if largest else value ^ const(-1)
    bits = tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", value)
    magnitude = bits & const(0x7FFFFFFF)
    key = tirx.Select(bits < const(0), const(0) - magnitude, bits)
    key = tirx.Select(magnitude > const(0x7F800000), const(0x7FFFFFFF), key)
    return key if largest else key ^ const(-1)
