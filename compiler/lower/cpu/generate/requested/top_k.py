"""The k largest or smallest elements along an axis, in order, the first of equals first.

Each element becomes one 64-bit integer: its value as an ordered integer above the number of its place, counted
backwards, so that no two are equal. Few are found by a search that keeps the best in order; a vector without a better
one costs a comparison. Many are found by sorting the row by the bytes of the values. Columns beside each other, of
which few are wanted, are searched a vector at a time.

-0 equals 0, and NaN is larger than all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.columns import columns, rows
from heterocc.compiler.lower.cpu.generate.requested.request import Around, Request
from heterocc.compiler.lower.cpu.sizes import is_number

ABREAST = 4
"""Vectors that are compared before a branch."""

ELEMENTS = 8
"""The work of an element, in those of a kernel that reads each once."""

DIGIT = 256
DIGITS = 4
"""Values of a byte, and the bytes of a value."""

FEWEST_LANES = 4
"""The smallest vector of columns that is faster than columns one by one."""

_PLACE = (1 << 31) - 1
_LEAST = tirx.const(-(1 << 63), "int64")


def write_top_k(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, values, places)`: the first `k` elements of the axis in order, and their int64 indices."""
    axis = request.number("axis")
    around = request.around(axis)
    count = around.length
    k = request.shapes[1][axis]
    # An axis of any size is checked when the kernel runs.
    enough = (
        nullcontext() if is_number(count) else build.Assert(index(count) >= index(k), request.text("few"), "ValueError")
    )
    lanes = request.lanes(around.inner)
    beside = lanes >= FEWEST_LANES and k <= lanes // 2
    with enough:
        (_write_columns if beside else _write_rows)(request, arguments, around, k)


def _write_columns(request: Request, arguments: Sequence[tirx.Buffer], around: Around, k: int) -> None:
    """Few of columns beside each other, a vector of which is searched together: an element takes its place in each."""
    data, values, places = arguments
    _, count, inner = around
    lanes, dtype, largest = request.lanes(inner), request.dtypes[0], bool(request.number("largest"))
    with columns(around, lanes, wide=1) as lines:
        (start,) = lines.starts
        best = [emit.registers(1, lanes, "int64") for _ in range(k)]
        held = [emit.vector(register, index(0), lanes) for register in best]
        for register in best:
            emit.put(register, emit.broadcast(_LEAST, lanes), index(0), lanes)
        with build.serial(index(0), index(count)) as step:
            value = emit.vector(data, (lines.outer * index(count) + step) * index(inner) + start, lanes)
            key = tirx.Cast(f"int64x{lanes}", _ordered(value, dtype, lanes, largest=largest))
            high, low = key << emit.broadcast(index(32), lanes), emit.broadcast(index(_PLACE) - step, lanes)
            element = build.bind(high | low)
            for number in reversed(range(k)):  # those before are not changed yet
                moved = tirx.min(held[number - 1], element) if number else element
                emit.put(best[number], tirx.max(held[number], moved), index(0), lanes)
        for number, register in enumerate(best):
            to = build.bind((lines.outer * index(k) + index(number)) * index(inner) + start)
            with emit.loop(lanes) as lane:
                place = build.bind(index(_PLACE) - (register[lane] & index(_PLACE)))
                build.buffer_store(places, place, [to + lane])
                element = data[(lines.outer * index(count) + place) * index(inner) + start + lane]
                build.buffer_store(values, element, [to + lane])


def _write_rows(request: Request, arguments: Sequence[tirx.Buffer], around: Around, k: int) -> None:
    data, values, places = arguments
    outer, count, inner = around
    with rows(outer * inner, outer * count * inner * ELEMENTS) as task:
        number, column = emit.unpacked(task, (outer, inner))
        row, begin = data, build.bind(number * index(count))
        if inner > 1:
            row, begin = emit.scratch(count, request.dtypes[0]), index(0)
            with build.serial(index(0), index(count)) as step:
                element = data[(number * index(count) + step) * index(inner) + column]
                build.buffer_store(row, element, [step])
        elements = _Row(request, row, begin, count, k)
        best = elements.search() if is_search(count, k) else elements.sort()
        with build.serial(index(0), index(k)) as step:
            place = build.bind(best(step))
            to = (number * index(k) + step) * index(inner) + column
            build.buffer_store(values, row[begin + place], [to])
            build.buffer_store(places, place, [to])


def is_search(count: int, k: int) -> bool:
    """Whether a search is faster than a sort, by nanoseconds of each; few of an axis of any size are searched for."""
    if not is_number(count):
        return True
    entered = min(count, k * (1 + math.log(count / k)))
    return 0.2 * count + entered * (6 + k / 8) < 1000 + 7 * count


class _Row:
    """A row of `count` elements of a buffer, from `begin`."""

    def __init__(self, request: Request, buffer: tirx.Buffer, begin: tirx.Expr, count: int, k: int) -> None:
        self.buffer, self.begin, self.count, self.k = buffer, begin, count, k
        self.dtype = request.dtypes[0]
        self.largest = bool(request.number("largest"))
        self.lanes = request.isa.lanes
        self.halves = self.lanes // 2

    def key(self, place: tirx.Expr, lanes: int = 1) -> tirx.Expr:
        """Elements as integers of 32 bits, the larger the better."""
        value = emit.vector(self.buffer, self.begin + place, lanes)
        return _ordered(value, self.dtype, lanes, largest=self.largest)

    def search(self) -> Callable[[tirx.Expr], tirx.Expr]:
        """The places of the best elements in order, from those before and each next one."""
        vectors = -(-self.k // self.halves)
        best = emit.scratch(1 + vectors * self.halves, "int64")
        build.buffer_store(best, tirx.const((1 << 63) - 1, "int64"), [index(0)])
        with emit.loop(vectors) as number:
            emit.put(best, emit.broadcast(_LEAST, self.halves), index(1) + number * index(self.halves), self.halves)

        def enter(place: tirx.Expr) -> None:
            high = tirx.Cast("int64", self.key(place)) << index(32)
            element = build.bind(high | (index(_PLACE) - place))
            with emit.loop(vectors) as number:
                at = build.bind(index((vectors - 1) * self.halves) - number * index(self.halves))
                each = emit.broadcast(element, self.halves)
                moved = tirx.min(emit.vector(best, at, self.halves), each)
                kept = emit.vector(best, at + index(1), self.halves)
                emit.put(best, tirx.max(kept, moved), at + index(1), self.halves)

        def worst() -> tirx.Expr:
            return build.bind(tirx.Cast("int32", best[index(self.k)] >> index(32)))

        with emit.loop(self.k) as place:
            enter(place)
        wide = self.lanes * ABREAST
        blocks = (self.count - self.k) // wide
        if not is_number(blocks) or blocks:
            mask = emit.registers(1, 1, "int32")
            powers = emit.registers(1, self.lanes, "int32")
            for lane in range(self.lanes):
                build.buffer_store(powers, tirx.const(1 << lane, "int32"), [index(lane)])
            with emit.loop(blocks) as block:
                start = build.bind(index(self.k) + block * index(wide))
                with build.If(self._any(start, worst())), build.Then(), emit.loop(ABREAST) as number:
                    first = build.bind(start + number * index(self.lanes))
                    build.buffer_store(mask, self._mask(first, worst(), powers), [index(0)])
                    with build.While(mask[index(0)] != tirx.const(0, "int32")):
                        held = build.bind(mask[index(0)])
                        lane_number = tirx.call_llvm_intrin("int32", "llvm.cttz.i32", held, tirx.const(1, "bool"))
                        place = build.bind(first + tirx.Cast("int64", lane_number))
                        build.buffer_store(mask, held & (held - tirx.const(1, "int32")), [index(0)])
                        with build.If(self.key(place) > worst()), build.Then():
                            enter(place)
        done = self.k + blocks * wide
        if not is_number(done) or self.count > done:
            with emit.loop(self.count - done) as rest:
                place = build.bind(index(done) + rest)
                with build.If(self.key(place) > worst()), build.Then():
                    enter(place)
        return lambda number: index(_PLACE) - (best[number + index(1)] & index(_PLACE))

    def _any(self, start: tirx.Expr, worst: tirx.Expr) -> tirx.Expr:
        """Whether one of the next vectors has a better element."""
        keys = [self.key(start + index(n * self.lanes), self.lanes) for n in range(ABREAST)]
        while len(keys) > 1:
            keys = [tirx.max(a, b) for a, b in zip(keys[::2], keys[1::2], strict=True)]
        better = keys[0] > emit.broadcast(worst, self.lanes)
        return tirx.call_llvm_pure_intrin("bool", f"llvm.vector.reduce.or.v{self.lanes}i1", better)

    def _mask(self, start: tirx.Expr, worst: tirx.Expr, powers: tirx.Buffer) -> tirx.Expr:
        """A bit for each better element of a vector."""
        better = self.key(start, self.lanes) > emit.broadcast(worst, self.lanes)
        none = emit.broadcast(tirx.const(0, "int32"), self.lanes)
        bits = tirx.Select(better, emit.vector(powers, index(0), self.lanes), none)
        return tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.or.v{self.lanes}i32", bits)

    def sort(self) -> Callable[[tirx.Expr], tirx.Expr]:
        """The places of all elements in order, sorted by each byte of their values, the lowest first (radix sort)."""
        either = [emit.scratch(self.count, "int64") for _ in range(2)]
        starts = emit.scratch(DIGITS * DIGIT, "int32")
        zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")

        def digit(element: tirx.Expr, number: int) -> tirx.Expr:
            low = tirx.Cast("int32", element >> index(32 + 8 * number)) & tirx.const(DIGIT - 1, "int32")
            return build.bind(index(number * DIGIT) + tirx.Cast("int64", low))

        with build.serial(index(0), index(DIGITS * DIGIT)) as number:
            build.buffer_store(starts, zero, [number])
        with build.serial(index(0), index(self.count)) as place:
            # The best first, and unsigned.
            key = self.key(place) ^ tirx.const((1 << 31) - 1, "int32")
            element = build.bind((tirx.Cast("int64", key) << index(32)) | place)
            build.buffer_store(either[0], element, [place])
            for number in range(DIGITS):
                counter = digit(element, number)
                build.buffer_store(starts, starts[counter] + one, [counter])
        total = emit.registers(1, 1, "int32")
        for number in range(DIGITS):
            build.buffer_store(total, zero, [index(0)])
            with build.serial(index(number * DIGIT), index((number + 1) * DIGIT)) as value:
                many = build.bind(starts[value])
                build.buffer_store(starts, total[index(0)], [value])
                build.buffer_store(total, total[index(0)] + many, [index(0)])
            with build.serial(index(0), index(self.count)) as place:
                element = build.bind(either[number % 2][place])
                counter = digit(element, number)
                to = build.bind(starts[counter])
                build.buffer_store(starts, to + one, [counter])
                build.buffer_store(either[1 - number % 2], element, [tirx.Cast("int64", to)])
        return lambda number: either[0][number] & index(_PLACE)


def _ordered(value: tirx.Expr, dtype: str, lanes: int, *, largest: bool) -> tirx.Expr:
    """Vectors of float32 or int32 as integers of 32 bits, the larger the better. -0 equals 0, NaN is above all."""

    def const(number: int) -> tirx.Expr:
        return emit.broadcast(tirx.const(number, "int32"), lanes)

    if dtype == "int32":
        return value if largest else value ^ const(-1)
    bits = tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", value)
    magnitude = bits & const(0x7FFFFFFF)
    key = tirx.Select(bits < const(0), const(0) - magnitude, bits)
    key = tirx.Select(magnitude > const(0x7F800000), const(0x7FFFFFFF), key)
    return key if largest else key ^ const(-1)
