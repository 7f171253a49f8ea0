"""The k largest or smallest elements along an axis, in order, the first of equals first; the place of the extreme.

Each element becomes one 64-bit integer: its value as an ordered integer above the number of its place, counted
backwards, so that no two are equal. The best one is that of the best of each lane. Few are found by a search that keeps
the best in order; a vector without a better one costs a comparison. Many are found by sorting the row by the bytes of
the values. Columns beside each other, of which few are wanted, are searched a vector at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import ELEMENT, Request
from heterocc.compiler.lower.cpu.generate.spans import folded, in_vectors
from heterocc.compiler.lower.cpu.sizes import Size, filled, is_number, is_one

ABREAST = 4
"""Vectors that are compared before a branch."""

ELEMENTS = 8
"""The work of an element, in those of a kernel that reads each once."""

DIGIT = 256
DIGITS = 4
"""Values of a byte, and the bytes of a value."""

_PLACE = (1 << 31) - 1
_LEAST = tirx.const(-(1 << 63), "int64")


@dataclass(frozen=True, slots=True)
class _Order:
    """What makes an element better than another one: a larger or smaller value, and of equals the first or `last`.

    NaN is above all numbers. If each element is compared with the first, it is the worst, and the best as the first.
    """

    dtype: str
    largest: bool
    last: bool = False
    compares: bool = False

    def key(self, value: tirx.Expr, lanes: int, is_first: tirx.Expr | None = None) -> tirx.Expr:
        """Vectors of float32 or int32 as integers of 32 bits, the better the larger. -0 equals 0."""

        def const(number: int) -> tirx.Expr:
            return emit.broadcast(tirx.const(number, "int32"), lanes)

        if self.dtype == "int32":
            return value if self.largest else value ^ const(-1)
        bits = tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", value)
        magnitude = bits & const(0x7FFFFFFF)
        key = tirx.Select(bits < const(0), const(0) - magnitude, bits)
        key = key if self.largest else key ^ const(-1)
        best, worst = (tirx.const(number, "int32") for number in (0x7FFFFFFF, -0x80000000))
        of_nan = best if self.largest and not self.compares else worst
        if self.compares and is_first is not None:
            of_nan = tirx.Select(is_first, best, worst)
        return tirx.Select(magnitude > const(0x7F800000), emit.broadcast(of_nan, lanes), key)

    def place(self, number: tirx.Expr) -> tirx.Expr:
        """The part of an element that its place is, or the place from this part."""
        return number if self.last else index(_PLACE) - number

    def element(self, key: tirx.Expr, places: tirx.Expr, lanes: int) -> tirx.Expr:
        """Elements by their keys, and their places as parts of them."""
        wide = tirx.Cast("int64" if lanes == 1 else f"int64x{lanes}", key)
        return build.bind((wide << emit.broadcast(index(32), lanes)) | places)


def write_top_k(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, values, places)`: the first `k` elements of the axis in order, and their int64 indices."""
    order = _Order(request.dtypes[0], bool(request.number("largest")))
    _write(request, arguments, order, request.shapes[1][request.number("axis")])


def write_index_of(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, places)`: the int64 index of the extreme of float32 along `axis`, the first or last of equals.

    As ONNX Runtime compares each element with the first, NaN is never an extreme, except as the first one.
    """
    largest, last = (bool(request.number(name)) for name in ("largest", "last"))
    _write(request, arguments, _Order("float32", largest, last, compares=True), 1)


def _write(request: Request, arguments: Sequence[tirx.Buffer], order: _Order, k: Size) -> None:
    _, count, inner = request.around(request.number("axis"))
    data, *values, places = arguments
    # An axis of any size is checked when the kernel runs.
    enough = (
        nullcontext() if is_number(count) else build.Assert(index(count) >= index(k), request.text("few"), "ValueError")
    )
    with enough:
        if is_number(k) and 0 < k <= filled(request.isa.lanes, inner) // 2:
            _write_columns(request, data, values, places, order, k)
        else:
            _write_rows(request, data, values, places, order, k)


def _write_columns(
    request: Request, data: tirx.Buffer, values: Sequence[tirx.Buffer], places: tirx.Buffer, order: _Order, k: int
) -> None:
    """Few of columns beside each other, a vector of which is searched together: an element takes its place in each."""
    outer, count, inner = request.around(request.number("axis"))
    lanes = filled(request.isa.lanes, inner)
    wide = min(max(1, ABREAST // k), -(-inner // lanes))
    tiles = -(-inner // (wide * lanes))
    with emit.shared_loop(outer * tiles, outer * count * inner * ELEMENT) as task:
        row, tile = map(build.bind, emit.unpacked(task, (outer, tiles)))
        firsts = (tile * index(wide * lanes) + index(n * lanes) for n in range(wide))
        starts = [build.bind(tirx.min(first, index(inner - lanes))) for first in firsts]
        every = [(start, [emit.registers(1, lanes, "int64") for _ in range(k)]) for start in starts]
        for register in (one for _, best in every for one in best):
            emit.put(register, emit.broadcast(_LEAST, lanes), index(0), lanes)
        with build.serial(index(0), index(count)) as step:
            low = emit.broadcast(order.place(step), lanes)
            for start, best in every:
                held = [emit.vector(register, index(0), lanes) for register in best]
                value = emit.vector(data, (row * index(count) + step) * index(inner) + start, lanes)
                element = order.element(order.key(value, lanes, step.equal(index(0))), low, lanes)
                for number in reversed(range(k)):  # those before are not changed yet
                    moved = tirx.min(held[number - 1], element) if number else element
                    emit.put(best[number], tirx.max(held[number], moved), index(0), lanes)
        for start, best in every:
            for number, register in enumerate(best):
                to = build.bind((row * index(k) + index(number)) * index(inner) + start)
                with emit.loop(lanes) as lane:
                    place = build.bind(order.place(register[lane] & index(_PLACE)))
                    build.buffer_store(places, place, [to + lane])
                    for result in values:
                        element = data[(row * index(count) + place) * index(inner) + start + lane]
                        build.buffer_store(result, element, [to + lane])


def _write_rows(
    request: Request, data: tirx.Buffer, values: Sequence[tirx.Buffer], places: tirx.Buffer, order: _Order, k: Size
) -> None:
    outer, count, inner = request.around(request.number("axis"))
    with emit.shared_loop(outer * inner, outer * count * inner * ELEMENT * (ELEMENTS if values else 1)) as task:
        number, column = emit.unpacked(task, (outer, inner))
        row, begin = data, build.bind(number * index(count))
        if inner > 1:
            row, begin = emit.scratch(count, order.dtype), index(0)
            with build.serial(index(0), index(count)) as step:
                element = data[(number * index(count) + step) * index(inner) + column]
                build.buffer_store(row, element, [step])
        elements = _Row(order, request.isa.lanes, row, begin, count, k)
        find = elements.best if is_one(k) else elements.search if is_search(count, k) else elements.sort
        best = find()
        with build.serial(index(0), index(k)) as step:
            place = build.bind(best(step))
            to = (number * index(k) + step) * index(inner) + column
            build.buffer_store(places, place, [to])
            for result in values:
                build.buffer_store(result, row[begin + place], [to])


def is_search(count: Size, k: Size) -> bool:
    """Whether a search is faster than a sort, by nanoseconds; a number of an axis of any size is searched for."""
    if not is_number(count) or not is_number(k):
        return is_number(k)
    entered = min(count, k * (1 + math.log(count / k)))
    return 0.2 * count + entered * (6 + k / 8) < 1000 + 7 * count


class _Row:
    """A row of `count` elements of a buffer, from `begin`."""

    def __init__(self, order: _Order, lanes: int, buffer: tirx.Buffer, begin: tirx.Expr, count: Size, k: Size) -> None:
        self.order, self.buffer, self.begin, self.count, self.k = order, buffer, begin, count, k
        self.lanes, self.halves = lanes, lanes // 2

    def key(self, place: tirx.Expr, lanes: int = 1, is_first: tirx.Expr | None = None) -> tirx.Expr:
        """Elements as integers of 32 bits, the better the larger."""
        return self.order.key(emit.vector(self.buffer, self.begin + place, lanes), lanes, is_first)

    def best(self) -> Callable[[tirx.Expr], tirx.Expr]:
        """The place of the best element, from the best one of each lane."""
        held = emit.registers(1, self.lanes, "int64")
        zero = index(0)
        first = self.order.element(self.key(zero, 1, zero.equal(zero)), self.order.place(zero), 1)
        emit.put(held, emit.broadcast(first, self.lanes), zero, self.lanes)

        def take(start: tirx.Expr, width: int) -> None:
            places = build.ramp(start, index(1), width) if width > 1 else start
            parts = places if self.order.last else emit.broadcast(index(_PLACE), width) - places
            element = self.order.element(self.key(start, width), parts, width)
            emit.put(held, tirx.max(emit.vector(held, zero, width), element), zero, width)

        in_vectors(self.count, self.lanes, take, few=True)
        element = build.bind(folded(held, self.lanes, tirx.max)[zero])
        return lambda _: self.order.place(element & index(_PLACE))

    def search(self) -> Callable[[tirx.Expr], tirx.Expr]:
        """The places of the best elements in order, from those before and each next one."""
        vectors = -(-self.k // self.halves)
        best = emit.scratch(1 + vectors * self.halves, "int64")
        build.buffer_store(best, tirx.const((1 << 63) - 1, "int64"), [index(0)])
        with emit.loop(vectors) as number:
            emit.put(best, emit.broadcast(_LEAST, self.halves), index(1) + number * index(self.halves), self.halves)

        def enter(place: tirx.Expr) -> None:
            element = self.order.element(self.key(place), self.order.place(place), 1)
            with emit.loop(vectors) as number:
                at = build.bind(index((vectors - 1) * self.halves) - number * index(self.halves))
                each = emit.broadcast(element, self.halves)
                moved = tirx.min(emit.vector(best, at, self.halves), each)
                kept = emit.vector(best, at + index(1), self.halves)
                emit.put(best, tirx.max(kept, moved), at + index(1), self.halves)

        def worst() -> tirx.Expr:
            return build.bind(tirx.Cast("int32", best[index(self.k)] >> index(32)))

        def enter_better(place: tirx.Expr) -> None:
            with build.If(self.key(place) > worst()), build.Then():
                enter(place)

        with emit.loop(self.k) as place:
            enter(place)
        wide = self.lanes * ABREAST
        blocks = (self.count - self.k) // wide
        if not is_number(blocks) or blocks:
            with emit.loop(blocks) as block:
                start = build.bind(index(self.k) + block * index(wide))
                with build.If(self._any(start, worst())), build.Then(), emit.loop(wide) as number:
                    enter_better(build.bind(start + number))
        done = self.k + blocks * wide
        left = self.count - done
        if not is_number(left) or left:
            with emit.loop(left) as rest:
                enter_better(build.bind(index(done) + rest))
        return lambda number: self.order.place(best[number + index(1)] & index(_PLACE))

    def _any(self, start: tirx.Expr, worst: tirx.Expr) -> tirx.Expr:
        """Whether one of the next vectors has a better element."""
        keys = [self.key(start + index(n * self.lanes), self.lanes) for n in range(ABREAST)]
        while len(keys) > 1:
            keys = [tirx.max(a, b) for a, b in zip(keys[::2], keys[1::2], strict=True)]
        better = keys[0] > emit.broadcast(worst, self.lanes)
        return tirx.call_llvm_pure_intrin("bool", f"llvm.vector.reduce.or.v{self.lanes}i1", better)

    def sort(self) -> Callable[[tirx.Expr], tirx.Expr]:
        """The places of all elements in order, sorted by each byte of their values, the lowest first (radix sort)."""
        either = [emit.scratch(self.count, "int64") for _ in range(2)]
        starts, one = emit.scratch(1 + DIGIT, "int64"), index(1)

        def digit(element: tirx.Expr, number: int) -> tirx.Expr:
            return build.bind(element >> index(32 + 8 * number) & index(DIGIT - 1))

        with build.serial(index(0), index(self.count)) as place:
            # The best first, and unsigned.
            key = self.key(place) ^ tirx.const((1 << 31) - 1, "int32")
            build.buffer_store(either[0], self.order.element(key, place, 1), [place])
        for number in range(DIGITS):
            given, made = either[number % 2], either[1 - number % 2]
            with build.serial(index(0), index(1 + DIGIT)) as value:
                build.buffer_store(starts, index(0), [value])
            with build.serial(index(0), index(self.count)) as place:
                behind = build.bind(digit(given[place], number) + one)
                build.buffer_store(starts, starts[behind] + one, [behind])
            with build.serial(index(0), index(DIGIT)) as value:
                build.buffer_store(starts, starts[value + one] + starts[value], [value + one])
            with build.serial(index(0), index(self.count)) as place:
                element = build.bind(given[place])
                counter = digit(element, number)
                to = build.bind(starts[counter])
                build.buffer_store(starts, to + one, [counter])
                build.buffer_store(made, element, [to])
        return lambda number: either[0][number] & index(_PLACE)
