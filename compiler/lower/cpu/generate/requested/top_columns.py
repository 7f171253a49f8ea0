"""The few largest or smallest elements along an axis that is not the last, for vectors of neighbouring columns.

Each lane keeps the best elements of its column so far in order. A next one enters before those that are worse; those
move by one place, and the last is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.columns import Columns, columns
from heterocc.compiler.lower.cpu.generate.requested.ordered import ordered
from heterocc.compiler.lower.cpu.generate.requested.request import Around, Request
from heterocc.compiler.lower.cpu.sizes import is_number

FEWEST_LANES = 4


def takes_columns(request: Request, inner: int, k: int) -> bool:
    """Whether vectors of columns are faster than columns one by one: an element takes a few instructions for each k."""
    lanes = request.lanes(inner)
    return lanes >= FEWEST_LANES and k <= lanes // 2


def write_top_of_columns(request: Request, arguments: Sequence[tirx.Buffer], around: Around) -> None:
    """Write `(data, values, places)` of an array as seen from its axis."""
    count = around.length
    k = request.shapes[1][request.number("axis")]
    with columns(around, request.lanes(around.inner), wide=1) as lines:
        best = _Best(request, arguments[0], lines, around, k)
        for step in range(k):
            best.enter(index(step), step)
        if not is_number(count) or count > k:
            with build.serial(index(k), index(count)) as step:
                best.enter(step, k)
        best.store(arguments)


class _Best:
    """The best elements of a vector of columns, in registers: as ordered integers, and their places."""

    def __init__(self, request: Request, data: tirx.Buffer, lines: Columns, around: Around, k: int) -> None:
        self.data, self.lines, self.k = data, lines, k
        self.count, self.inner = around.length, around.inner
        self.dtype, self.largest = request.dtypes[0], bool(request.number("largest"))
        self.start = lines.starts[0]
        self.keys = [emit.registers(1, lines.lanes, "int32") for _ in range(k)]
        self.places = [emit.registers(1, lines.lanes, "int32") for _ in range(k)]
        self.key = emit.registers(1, lines.lanes, "int32")

    def enter(self, step: tirx.Expr, held: int) -> None:
        """Enter the elements in place `step` of their columns beside the `held` best ones before."""
        lanes = self.lines.lanes
        value = emit.vector(self.data, self._at(step) + self.start, lanes)
        emit.put(self.key, ordered(value, self.dtype, lanes, largest=self.largest), index(0), lanes)
        key, place = _whole(self.key, lanes), emit.broadcast(tirx.Cast("int32", step), lanes)
        for number in range(min(held, self.k - 1), -1, -1):
            # Those before are not changed yet.
            moved_key, moved_place = key, place
            if number:
                before = _whole(self.keys[number - 1], lanes)
                moved_key = tirx.min(before, key)
                moved_place = tirx.Select(key > before, _whole(self.places[number - 1], lanes), place)
            if number < held:
                here = _whole(self.keys[number], lanes)
                moved_place = tirx.Select(key > here, moved_place, _whole(self.places[number], lanes))
                moved_key = tirx.max(here, moved_key)
            emit.put(self.places[number], moved_place, index(0), lanes)
            emit.put(self.keys[number], moved_key, index(0), lanes)

    def store(self, arguments: Sequence[tirx.Buffer]) -> None:
        """Store the elements and their places."""
        _, values, places = arguments
        for number, held in enumerate(self.places):
            to = build.bind((self.lines.outer * index(self.k) + index(number)) * index(self.inner) + self.start)
            with emit.loop(self.lines.lanes, "vectorized") as lane:
                build.buffer_store(places, tirx.Cast("int64", held[lane]), [to + lane])
            with emit.loop(self.lines.lanes) as lane:
                element = self.data[self._at(tirx.Cast("int64", held[lane])) + self.start + lane]
                build.buffer_store(values, element, [to + lane])

    def _at(self, step: tirx.Expr) -> tirx.Expr:
        return (self.lines.outer * index(self.count) + step) * index(self.inner)


def _whole(buffer: tirx.Buffer, lanes: int) -> tirx.Expr:
    return emit.vector(buffer, index(0), lanes)
