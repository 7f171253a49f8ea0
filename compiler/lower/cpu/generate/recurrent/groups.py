"""How a step of a recurrent layer is divided: groups of columns, tiles of rows of the batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.lower.cpu.generate.emit import bound, either
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.recurrent.arguments import number

_MOST_ROWS = 8
"""The most rows of a tile: each has code of its own."""

_CHAINS = 8
"""Sums of a single row that are computed together: a multiply-add waits for the one before."""

_PARALLEL_WORK = 1 << 17
"""The fewest multiply-adds of a step that are divided among threads: two or three microseconds of one, which waits for
weights from a second-level cache. Those of bytes are four times as fast."""


@dataclass(frozen=True)
class Group:
    """Columns of the state that a task computes for all rows: `stored` from `first` on, of which `columns` exist."""

    first: tirx.Expr
    stored: int
    columns: int


_WriteSums = Callable[[Group, range], None]
_WriteCells = Callable[[Group], None]


@dataclass(frozen=True)
class Phase:
    """The gates whose sums are computed together, and the tiles of these sums: vectors of `lanes` columns."""

    layer: Layer
    gates: range
    lanes: int
    sums: int

    @classmethod
    def of(cls, layer: Layer, gates: range, isa: Isa) -> Phase:
        """A phase for the registers of a CPU: three quarters of them hold sums."""
        lanes = isa.lanes if layer.dtype == "float32" else max(1, isa.lanes // 2)
        return cls(layer, gates, min(lanes, layer.unit), isa.registers * 3 // 4)

    @property
    def rows(self) -> int:
        """The most rows of a tile."""
        most = max(1, min(_MOST_ROWS, self.sums // len(self.gates)))
        return most if self.layer.batch is None else max(1, min(self.layer.batch, most))

    @property
    def width(self) -> int:
        """The columns of a group but for the last one: whole blocks of weights, enough sums for a row."""
        block = self.layer.block(len(self.gates))
        blocks, chains = self.layer.padded // block, len(self.gates) * block // self.lanes
        groups = -(-blocks // -(-_CHAINS // chains))
        return block * -(-blocks // groups)

    def vectors(self, rows: int, stored: int) -> int:
        """The vectors of a tile of so many rows in a group."""
        most = max(1, self.sums // (rows * len(self.gates)))
        every = stored // self.lanes
        return max(n for n in range(1, min(most, every) + 1) if every % n == 0)

    def each_group(self, batch: tirx.Expr, sums: _WriteSums, cells: _WriteCells) -> None:
        """Write `sums` and `cells` for all groups, in a parallel loop if there is enough work.

        `sums` is given the batches that the code is for as well, so that it has no tiles of other numbers of rows.
        """
        layer, groups = self.layer, -(-self.layer.padded // self.width)
        one = layer.hidden * layer.hidden * len(self.gates) // layer.together
        if groups == 1 or (layer.batch is not None and layer.batch * one < _PARALLEL_WORK):
            self._loop(build.serial, sums, cells)
        elif layer.batch is not None or one >= _PARALLEL_WORK:
            self._loop(build.parallel, sums, cells)
        else:
            fewest = -(-_PARALLEL_WORK // one)
            either(
                batch >= number(fewest),
                lambda: self._loop(build.parallel, sums, cells, range(fewest, sys.maxsize)),
                lambda: self._loop(build.serial, sums, cells, range(fewest)),
            )

    def _loop(
        self,
        kind: Callable[..., AbstractContextManager[tirx.Expr]],
        sums: _WriteSums,
        cells: _WriteCells,
        batches: range = range(sys.maxsize),
    ) -> None:
        layer, width = self.layer, self.width
        groups, whole = -(-layer.padded // width), layer.hidden // width
        rest = layer.padded - whole * width, layer.hidden - whole * width

        def write(group: Group) -> None:
            sums(group, batches)
            cells(group)

        with kind(number(0), number(groups)) as place:
            each, last = Group(place * number(width), width, width), Group(number(whole * width), *rest)
            if whole in (0, groups):
                write(each if whole else last)
            elif last.stored == width:  # the sums of all groups have the same code
                sums(each, batches)
                either(place < number(whole), partial(cells, each), partial(cells, last))
            else:
                either(place < number(whole), partial(write, each), partial(write, last))


@dataclass(frozen=True)
class Tiles:
    """The rows of a batch in as few tiles of nearly equal sizes as the registers allow, of at most `most` rows.

    `count` tiles have `least` rows or, the first `longer` ones, one more.
    """

    most: int
    batch: int | None
    count: tirx.Expr
    least: tirx.Expr
    longer: tirx.Expr

    @classmethod
    def of(cls, phase: Phase, batch: tirx.Expr) -> Tiles:
        """Those of a phase."""
        if phase.layer.batch is not None:
            count = max(1, -(-phase.layer.batch // phase.rows))
            return cls(phase.rows, phase.layer.batch, number(count), *map(number, divmod(phase.layer.batch, count)))
        count = bound(tirx.max(tirx.floordiv(batch + number(phase.rows - 1), number(phase.rows)), number(1)))
        least = bound(tirx.floordiv(batch, count))
        return cls(phase.rows, None, count, least, bound(batch - least * count))

    def each(self, batches: range, body: Callable[[tirx.Expr, int], None]) -> None:
        """Write `body` for the first row and the size of every tile that one of `batches` has."""
        sizes = self._sizes(batches)
        with build.serial(number(0), self.count) as place:
            first = bound(place * self.least + tirx.min(place, self.longer))
            size = bound(self.least + tirx.Select(place < self.longer, number(1), number(0)))
            self._chosen(sizes, first, size, body)

    def _sizes(self, batches: range) -> list[int]:
        if self.batch is not None:
            least, longer = int(self.least), int(self.longer)
            return [least, least + 1] if longer else [least]
        sizes: set[int] = set()
        for batch in batches[: self.most * (self.most + 1)]:  # later ones have no tiles of other sizes
            count = max(1, -(-batch // self.most))
            sizes |= {batch // count, -(-batch // count)}
        return sorted(sizes - {0})

    def _chosen(
        self, sizes: list[int], first: tirx.Expr, size: tirx.Expr, body: Callable[[tirx.Expr, int], None]
    ) -> None:
        if len(sizes) == 1 and self.batch is not None:
            if sizes[0]:
                body(first, sizes[0])
            return
        middle = len(sizes) // 2
        if len(sizes) == 1:
            with build.If(size > number(0)), build.Then():
                body(first, sizes[0])
            return
        either(
            size < number(sizes[middle]),
            lambda: self._chosen(sizes[:middle], first, size, body),
            lambda: self._chosen(sizes[middle:], first, size, body),
        )
