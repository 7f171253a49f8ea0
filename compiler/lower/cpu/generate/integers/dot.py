"""Sums of products of unsigned and signed 8-bit integers in 32-bit lanes, by the instructions of each CPU.

None of the forms saturates: AVX2's multiplication of bytes (`vpmaddubsw`) would, so products there are of 16-bit
numbers.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate.emit import vector
from heterocc.compiler.lower.cpu.generate.isa import Dot, Isa
from heterocc.compiler.lower.cpu.generate.places import index

GROUPS: dict[Dot, int] = {"bytes": 4, "pairs": 2, "single": 1}
"""Terms that one instruction multiplies and adds in each lane."""

_BYTES = {16: "llvm.x86.avx512.vpdpbusd.512", 4: "llvm.aarch64.neon.usdot.v4i32.v16i8"}
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}


def group_of(isa: Isa) -> int:
    """Terms that one instruction multiplies and adds in each lane."""
    return GROUPS[isa.dot]


def numbers(buffer: tirx.Buffer, start: tirx.Expr, count: int, isa: Isa) -> tirx.Expr:
    """One row's numbers of a group, in each lane: `count` unsigned bytes of a flat buffer, then zeros."""
    group = group_of(isa)
    if isa.dot == "single":
        return build.broadcast(tirx.Cast("int32", buffer[start]), isa.lanes)
    if isa.dot == "bytes" and count == group:
        number = tirx.reinterpret("int32", vector(buffer, start, group))
    else:
        bits = 32 // group
        number = tirx.Cast("int32", buffer[start])
        for place in range(1, count):
            more = tirx.Cast("int32", buffer[start + index(place)])
            number = number + more * tirx.const(1 << (bits * place), "int32")
    return build.broadcast(number, isa.lanes)


def dot(total: tirx.Expr, row: tirx.Expr, weights: tirx.Buffer, start: tirx.Expr, isa: Isa) -> tirx.Expr:
    """`total` plus the products of a group of `numbers` and the weights of a vector of columns."""
    lanes, ty = isa.lanes, f"int32x{isa.lanes}"
    group = group_of(isa)
    column = vector(weights, start, lanes * group)
    if isa.dot == "single":
        return total + row * tirx.Cast(ty, column)
    if isa.dot == "pairs":
        pairs = [tirx.reinterpret(f"int16x{2 * lanes}", row), tirx.Cast(f"int16x{2 * lanes}", column)]
        return total + tirx.call_llvm_intrin(ty, _PAIRS[lanes], *pairs)
    return tirx.call_llvm_intrin(ty, _BYTES[lanes], total, tirx.reinterpret(f"int8x{4 * lanes}", row), column)
