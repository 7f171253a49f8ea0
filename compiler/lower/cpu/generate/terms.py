"""Kinds of terms: what one step of a product multiplies and adds in each lane of a vector.

A row of a tile has one number for all lanes in a step, a column has a vector. With `together` terms in a lane, numbers
are that many terms of a row in 32 bits, and vectors have as many of each column, as weights are packed. None of the
sums of integers saturates: AVX2's multiplication of bytes (`vpmaddubsw`) would, so products there are of 16-bit
numbers, or of weights that are limited (`integers/limited.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.blocks import dtype_of
from heterocc.compiler.lower.cpu.generate.isa import Dot, Isa
from heterocc.compiler.lower.cpu.generate.pairs import plus_products
from heterocc.compiler.lower.cpu.generate.places import index

_BYTES = {16: "llvm.x86.avx512.vpdpbusd.512", 4: "llvm.aarch64.neon.usdot.v4i32.v16i8"}
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_LIMITED = {16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw"}
"""Products of unsigned and signed bytes, of which two are added in each 16 bits, by 32-bit lanes of the vectors."""


@dataclass(frozen=True, slots=True)
class Term:
    """A kind of term.

    `sums` is the type of the sums, `read` that of the rows' numbers in memory. `plus(total, number, vector)` is a
    vector of sums plus the products of a number, given in all lanes, and of a column's vector.
    """

    together: int
    sums: str
    read: str
    plus: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]

    def number(self, buffer: tirx.Buffer, start: tirx.Expr, count: int | None = None) -> tirx.Expr:
        """A row's number: the `count` terms from a place of a flat buffer on, by default all, then zeros."""
        if self.together == 1 or self is PAIRS:
            return buffer[start] if dtype_of(buffer) in (self.sums, self.read) else tirx.Cast(self.sums, buffer[start])
        if count in (None, self.together) and dtype_of(buffer) == self.read:
            return tirx.reinterpret("int32", vector(buffer, start, self.together))
        number = tirx.Cast("int32", buffer[start])
        for place in range(1, count or self.together):
            more = tirx.Cast("int32", buffer[start + index(place)])
            number = number + more * tirx.const(1 << (32 // self.together * place), "int32")
        return number


def vector(buffer: tirx.Buffer, start: tirx.Expr, lanes: int) -> tirx.Expr:
    """`lanes` consecutive elements of a flat buffer."""
    return buffer[build.ramp(start, index(1), lanes) if lanes > 1 else start]


def _plus(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    return total + number * column


NUMBERS: Mapping[str, Term] = {
    dtype: Term(1, dtype, dtype, _plus) for dtype in ("float32", "float64", "int32", "uint32", "int64", "uint64")
}
"""Terms of numbers of one type, by its name."""

FLOATS = NUMBERS["float32"]

PAIRS = Term(2, "float32", "int32", plus_products)
"""Two numbers rounded to bfloat16; rows are read as pairs, too."""


def of_bytes(isa: Isa) -> Term:
    """Terms of unsigned bytes of rows and signed ones of columns, by the instruction that a CPU has for them."""
    return _of_bytes(isa.dot, isa.lanes)


@cache
def _of_bytes(dot: Dot, lanes: int) -> Term:
    def plus_single(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        return total + number * _as(f"int32x{lanes}", column)

    match dot:
        case "bytes":
            return Term(4, "int32", "uint8", _plus_bytes)
        case "limited":
            return Term(4, "int32", "uint8", plus_limited)
        case "pairs":
            return Term(2, "int32", "int16", _plus_pairs)
        case "single":
            return Term(1, "int32", "int32", plus_single)


def has_limited(isa: Isa) -> bool:
    """Whether products of limited weights have an instruction."""
    return isa.dot == "pairs" and isa.lanes in _LIMITED


def _plus_bytes(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    lanes = _lanes(total)
    sides = (_as(f"int8x{4 * lanes}", side) for side in (number, column))
    return tirx.call_llvm_intrin(f"int32x{lanes}", _BYTES[lanes], total, *sides)


def _plus_pairs(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    lanes = _lanes(total)
    sides = (_as(f"int16x{2 * lanes}", side) for side in (number, column))
    return total + tirx.call_llvm_intrin(f"int32x{lanes}", _PAIRS[lanes], *sides)


def plus_limited(total: tirx.Expr, *groups: tirx.Expr, times: int = 1) -> tirx.Expr:
    """Sums plus the products of numbers and limited columns, one after the other, all of whose sums fit in 16 bits."""
    lanes = _lanes(total)
    narrow: tirx.Expr | None = None
    for number, column in zip(groups[::2], groups[1::2], strict=True):
        sides = (_as(f"int8x{4 * lanes}", side) for side in (number, column))
        more = tirx.call_llvm_intrin(f"int16x{2 * lanes}", _LIMITED[lanes], *sides)
        narrow = more if narrow is None else narrow + more
    factor = tirx.const(times, f"int16x{2 * lanes}")
    return total + tirx.call_llvm_intrin(f"int32x{lanes}", _PAIRS[lanes], narrow, factor)


def _lanes(value: tirx.Expr) -> int:
    return int(value.ty.dtype.lanes)


def _as(dtype: str, value: tirx.Expr) -> tirx.Expr:
    """A vector of as many lanes of another type, or the same bits in others."""
    wanted, given = tvm_ffi.dtype(dtype), value.ty.dtype
    if wanted == given:
        return value
    same = wanted.bits * wanted.lanes == given.bits * given.lanes
    return tirx.reinterpret(dtype, value) if same else tirx.Cast(dtype, value)
