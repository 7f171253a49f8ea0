"""Sums of products of unsigned and signed 8-bit integers in 32-bit lanes, by the instructions of each CPU.

None of the forms saturates: AVX2's multiplication of bytes (`vpmaddubsw`) would, so products there are of 16-bit
numbers, or of weights that are limited (`limited.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.blocks import dtype_of
from heterocc.compiler.lower.cpu.generate.emit import vector
from heterocc.compiler.lower.cpu.generate.isa import Dot, Isa
from heterocc.compiler.lower.cpu.generate.places import index

GROUPS: dict[Dot, int] = {"bytes": 4, "limited": 4, "pairs": 2, "single": 1}
"""Terms that one instruction multiplies and adds in each lane."""

_BYTES = {16: "llvm.x86.avx512.vpdpbusd.512", 4: "llvm.aarch64.neon.usdot.v4i32.v16i8"}
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_LIMITED = {16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw"}
"""Products of unsigned and signed bytes, of which two are added in each 16 bits, by 32-bit lanes of the vectors."""


def has_limited(isa: Isa) -> bool:
    """Whether products of limited weights have an instruction."""
    return isa.dot == "pairs" and isa.lanes in _LIMITED


def group_of(isa: Isa) -> int:
    """Terms that one instruction multiplies and adds in each lane."""
    return GROUPS[isa.dot]


def numbers(buffer: tirx.Buffer, start: tirx.Expr, count: int, isa: Isa) -> tirx.Expr:
    """One row's numbers of a group, in each lane: `count` of a flat buffer, then zeros.

    They are unsigned bytes, or the same in 16 bits.
    """
    group = group_of(isa)
    if isa.dot == "single":
        return build.broadcast(tirx.Cast("int32", buffer[start]), isa.lanes)
    if count == group and dtype_of(buffer) == {"bytes": "uint8", "limited": "uint8", "pairs": "int16"}[isa.dot]:
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
    if isa.dot == "limited":
        return dot_limited(total, [(row, column)], isa)
    if isa.dot == "single":
        return total + row * tirx.Cast(ty, column)
    if isa.dot == "pairs":
        pairs = [tirx.reinterpret(f"int16x{2 * lanes}", row), tirx.Cast(f"int16x{2 * lanes}", column)]
        return total + tirx.call_llvm_intrin(ty, _PAIRS[lanes], *pairs)
    return tirx.call_llvm_intrin(ty, _BYTES[lanes], total, tirx.reinterpret(f"int8x{4 * lanes}", row), column)


def dot_limited(total: tirx.Expr, pairs: Sequence[tuple[tirx.Expr, tirx.Expr]], isa: Isa) -> tirx.Expr:
    """`total` plus the products of several groups of `numbers` and limited weights, whose sums fit in 16 bits."""
    lanes, ty = isa.lanes, f"int16x{2 * isa.lanes}"
    products = [
        tirx.call_llvm_intrin(ty, _LIMITED[lanes], tirx.reinterpret(f"int8x{4 * lanes}", row), column)
        for row, column in pairs
    ]
    narrow = products[0]
    for more in products[1:]:
        narrow = narrow + more
    return total + tirx.call_llvm_intrin(f"int32x{lanes}", _PAIRS[lanes], narrow, tirx.const(1, ty))


def row_groups(rows: Sequence[tirx.Expr], isa: Isa) -> tirx.Expr:
    """Vectors of bytes as one of groups, as many as an instruction multiplies: the first lowest, zeros for the rest."""
    size = group_of(isa)
    ty = f"int32x{isa.lanes}"
    total: tirx.Expr | None = None
    for place, row in enumerate(rows):
        number = row
        if size > 1:  # without copies of the sign in the places above
            number = tirx.Cast(f"uint{32 // size}x{isa.lanes}", row)
        number = tirx.Cast(ty, number)
        if place:
            number = tirx.shift_left(number, tirx.const(place * (32 // size), ty))
        total = number if total is None else tirx.bitwise_or(total, number)
    assert total is not None
    return total


def dot_of_groups(total: tirx.Expr, left: tirx.Expr, right: tirx.Expr, isa: Isa) -> tirx.Expr:
    """`total` plus the products of `row_groups` of unsigned numbers and of signed weights, lane by lane."""
    lanes, ty = isa.lanes, f"int32x{isa.lanes}"
    if isa.dot == "single":
        return total + left * right
    numbers_ = [tirx.reinterpret(f"int{32 // group_of(isa)}x{lanes * group_of(isa)}", side) for side in (left, right)]
    if isa.dot == "pairs":
        return total + tirx.call_llvm_intrin(ty, _PAIRS[lanes], *numbers_)
    return tirx.call_llvm_intrin(ty, _BYTES[lanes], total, *numbers_)


def in_vectors_of(length: int, isa: Isa) -> Isa:
    """The instruction set for vectors along `length` numbers: narrower ones, and products of single numbers for few."""
    if isa.dot == "bytes" and length >= isa.lanes:
        return isa
    narrow = isa.narrowed(length)
    return narrow if narrow.dot == "pairs" and length >= narrow.lanes else replace(narrow, dot="single")


def dot_codes(total: tirx.Expr, codes: tirx.Expr, row: tuple[tirx.Buffer, tirx.Expr], isa: Isa, bits: int) -> tirx.Expr:
    """`total` plus the products of four unsigned codes in each 32-bit lane and four int8 of a row, from a place on.

    The codes have `bits` bits. Products of bytes that are added in 16 bits would saturate: the halves of codes of 8
    bits are multiplied apart.
    """
    lanes, ty = isa.lanes, f"int32x{isa.lanes}"
    buffer, start = row
    if isa.dot == "single":
        for place in range(4):
            code = tirx.bitwise_and(tirx.shift_right(codes, tirx.const(8 * place, ty)), tirx.const(255, ty))
            total = total + code * build.broadcast(tirx.Cast("int32", buffer[start + index(place)]), lanes)
        return total
    four = tirx.reinterpret(
        f"int8x{4 * lanes}", build.broadcast(tirx.reinterpret("int32", vector(buffer, start, 4)), lanes)
    )
    if isa.dot == "bytes":
        return tirx.call_llvm_intrin(ty, _BYTES[lanes], total, tirx.reinterpret(f"int8x{4 * lanes}", codes), four)

    def added(some: tirx.Expr, factor: int) -> tirx.Expr:
        pairs = tirx.reinterpret(f"int8x{4 * lanes}", some), four
        narrow = tirx.call_llvm_intrin(f"int16x{2 * lanes}", _LIMITED[lanes], *pairs)
        return tirx.call_llvm_intrin(ty, _PAIRS[lanes], narrow, tirx.const(factor, f"int16x{2 * lanes}"))

    if bits < 8:
        return total + added(codes, 1)
    half = tirx.const(0x0F0F0F0F, ty)
    high = tirx.bitwise_and(tirx.shift_right(codes, tirx.const(4, ty)), half)
    return total + added(tirx.bitwise_and(codes, half), 1) + added(high, 16)
