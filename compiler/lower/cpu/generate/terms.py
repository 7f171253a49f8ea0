"""Kinds of terms: what one step of a product multiplies and adds in each lane of a vector.

A row of a tile has one number for all lanes in a step, a column has a vector. If there are several terms together,
numbers are that many terms of a row in 32 bits, and vectors have as many of each column, as weights are packed. None of
the sums of integers saturates: AVX2's multiplication of bytes (`vpmaddubsw`) would, so products there are of 16-bit
numbers, or of weights that are limited (`integers/limited.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate.isa import Dot, Isa
from heterocc.compiler.lower.cpu.generate.pairs import plus_products
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.kernels.expressions import dtype_of

_BYTES = {16: "llvm.x86.avx512.vpdpbusd.512", 4: "llvm.aarch64.neon.usdot.v4i32.v16i8"}
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_LIMITED = {16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw"}
"""Products of unsigned and signed bytes, of which two are added in each 16 bits, by 32-bit lanes of the vectors."""


@dataclass(frozen=True, slots=True)
class Term:
    """A kind of term: how many are `together` in a lane, and the types of `sums` and of rows' numbers as they are read.

    `plus(total, number, column)` is a vector of sums plus the products of a vector of numbers and one of a column.
    `cost` is the number of instructions that this takes. `packed` is the type of columns if these are packed in another
    one, as `Panels` has it: numbers of 16 bits are widened as they are read.
    """

    together: int
    sums: str
    read: str
    plus: Callable[..., tirx.Expr]
    cost: float = 1.0
    packed: str = ""

    def number(self, buffer: tirx.Buffer, start: tirx.Expr, count: int | None = None) -> tirx.Expr:
        """A row's number: the `count` terms from a place of a flat buffer on, by default all, then zeros."""
        if self.together == 1:
            return buffer[start] if dtype_of(buffer) == self.read else tirx.Cast(self.read, buffer[start])
        if count in (None, self.together) and dtype_of(buffer) == self.read:
            return tirx.reinterpret("int32", vector(buffer, start, self.together))
        number = tirx.Cast("int32", buffer[start])
        for place in range(1, count or self.together):
            more = tirx.Cast("int32", buffer[start + index(place)])
            number = number + more * tirx.const(1 << (32 // self.together * place), "int32")
        return number

    def add(
        self, total: tirx.Expr, number: tirx.Expr | Sequence[tirx.Expr], column: tirx.Expr | Sequence[tirx.Expr]
    ) -> tirx.Expr:
        """`total` plus the products of a row's number and a column's vector, or of several that are added at once."""
        if isinstance(number, tirx.Expr):
            number, column = [number], [column]
        lanes = _lanes(total)
        pairs = zip(number, column, strict=True)
        return self.plus(total, *(part for n, c in pairs for part in (broadcast(n, lanes), c)))


def vector(buffer: tirx.Buffer, start: tirx.Expr, lanes: int) -> tirx.Expr:
    """`lanes` consecutive elements of a flat buffer."""
    return buffer[build.ramp(start, index(1), lanes) if lanes > 1 else start]


def as_float(value: tirx.Expr) -> tirx.Expr:
    """A number or vector of float16, bfloat16 or int8 as float32; bits of bfloat16 are unsigned integers."""
    dtype, lanes = dtype_of(value), _lanes(value)
    of_all = "" if lanes == 1 else f"x{lanes}"
    if dtype in (f"float16{of_all}", f"int8{of_all}"):
        return tirx.Cast(f"float32{of_all}", value)
    if dtype == f"uint16{of_all}":
        bits = tirx.Cast(f"uint32{of_all}", value) << broadcast(tirx.const(16, "uint32"), lanes)
        return tirx.reinterpret(f"float32{of_all}", bits)
    return value


def broadcast(value: tirx.Expr, lanes: int) -> tirx.Expr:
    """A vector of one number."""
    return build.broadcast(value, lanes) if lanes > 1 else value


def _plus(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    return total + number * _as(dtype_of(total), column)


def _plus_bytes(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    lanes = _lanes(total)
    sides = (_as(f"int8x{4 * lanes}", side) for side in (number, column))
    return tirx.call_llvm_intrin(f"int32x{lanes}", _BYTES[lanes], total, *sides)


def _plus_pairs(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    lanes = _lanes(total)
    sides = (_as(f"int16x{2 * lanes}", side) for side in (number, column))
    return total + tirx.call_llvm_intrin(f"int32x{lanes}", _PAIRS[lanes], *sides)


def _plus_limited(total: tirx.Expr, *groups: tirx.Expr, times: int = 1) -> tirx.Expr:
    """The sums of the products of numbers and columns, which are given in turn, fit in 16 bits."""
    lanes, narrow = _lanes(total), f"int16x{2 * _lanes(total)}"
    added: tirx.Expr | None = None
    for number, column in zip(groups[::2], groups[1::2], strict=True):
        sides = (_as(f"int8x{4 * lanes}", side) for side in (number, column))
        more = tirx.call_llvm_intrin(narrow, _LIMITED[lanes], *sides)
        added = more if added is None else added + more
    return total + tirx.call_llvm_intrin(f"int32x{lanes}", _PAIRS[lanes], added, tirx.const(times, narrow))


def _plus_nibbles(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    """Products of bytes, each half of the number's apart, as all sums of these fit in 16 bits."""
    low = tirx.const(0x0F0F0F0F, dtype_of(number))
    total = _plus_limited(total, tirx.bitwise_and(number, low), column)
    return _plus_limited(total, tirx.bitwise_and(_shifted(number, 0, 4), low), column, times=16)


def _plus_halves(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    """Products of bytes as those of 16-bit numbers: of the even ones, then of the odd ones."""
    words = _as(f"int16x{2 * _lanes(total)}", column)
    for place, weight in ((0, _shifted(words, 8, 8)), (8, _shifted(words, 0, 8))):
        level = tirx.bitwise_and(_shifted(number, 0, place), tirx.const(0x00FF00FF, dtype_of(number)))
        total = _plus_pairs(total, level, weight)
    return total


def _plus_quarters(total: tirx.Expr, number: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    """Products of bytes as those of 32-bit numbers."""
    words = _as(dtype_of(total), column)
    for place in range(0, 32, 8):
        level = tirx.bitwise_and(_shifted(number, 0, place), tirx.const(0xFF, dtype_of(number)))
        total = total + level * _shifted(words, 24 - place, 24)
    return total


def _shifted(value: tirx.Expr, left: int, right: int) -> tirx.Expr:
    dtype = dtype_of(value)
    value = tirx.shift_left(value, tirx.const(left, dtype)) if left else value
    return tirx.shift_right(value, tirx.const(right, dtype)) if right else value


def _lanes(value: tirx.Expr) -> int:
    return int(value.ty.dtype.lanes)


def _as(dtype: str, value: tirx.Expr) -> tirx.Expr:
    """A vector of another type: the same bits if it has as many, else its numbers."""
    wanted, given = tvm_ffi.dtype(dtype), value.ty.dtype
    if wanted == given:
        return value
    same = wanted.bits * wanted.lanes == given.bits * given.lanes
    return tirx.reinterpret(dtype, value) if same else tirx.Cast(dtype, value)


NUMBERS: Mapping[str, Term] = {
    dtype: Term(1, dtype, dtype, _plus) for dtype in ("float32", "float64", "int32", "uint32", "int64", "uint64")
}
"""Terms of numbers of one type, by its name."""

FLOATS = NUMBERS["float32"]

WIDENED: Mapping[str, Term] = {packed: replace(FLOATS, packed=packed) for packed in ("float16", "uint16")}
"""The same with columns of a weight that the model stores in 16 bits, by their type: "uint16" are bits of bfloat16."""

PAIRS = Term(1, "float32", "int32", plus_products, packed="pairs")
"""Two numbers rounded to bfloat16, which are read as one."""

BYTES: Mapping[Dot, Term] = {
    "bytes": Term(4, "int32", "uint8", _plus_bytes),
    "limited": Term(4, "int32", "uint8", _plus_limited, 3.0),
    "pairs": Term(2, "int32", "int16", _plus_pairs, 1.95),
    "single": Term(1, "int32", "int32", _plus, 2.0),
}
"""Terms of unsigned bytes of rows and signed ones of columns, by the instruction that a CPU has for them."""


def has_limited(isa: Isa) -> bool:
    """Whether products of limited weights have an instruction."""
    return isa.dot == "pairs" and isa.lanes in _LIMITED


def of_fours(isa: Isa) -> Term:
    """The same for weights that are packed in fours on every CPU."""
    plus = _plus_bytes if isa.dot == "bytes" else _plus_quarters if isa.dot == "single" else _plus_halves
    return replace(BYTES["bytes"], plus=plus)


def of_codes(isa: Isa, bits: int) -> Term:
    """Terms of signed bytes of rows and of four unsigned codes of columns, which have so many bits."""
    narrow = _plus_limited if bits < 8 else _plus_nibbles
    plus = _plus_bytes if isa.dot == "bytes" else _plus_quarters if isa.dot == "single" else narrow
    return Term(4, "int32", "int8", lambda total, number, codes: plus(total, codes, number))


def in_vectors_of(length: int, isa: Isa) -> Isa:
    """The instruction set for vectors along `length` numbers: narrower ones, and products of single numbers for few."""
    if isa.dot == "bytes" and length >= isa.lanes:
        return isa
    narrow = isa.narrowed(length)
    return narrow if narrow.dot == "pairs" and length >= narrow.lanes else replace(narrow, dot="single")
