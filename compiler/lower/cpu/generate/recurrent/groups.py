"""How a step of a recurrent layer is divided: groups of columns, tiles of rows of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.lower.cpu.generate.emit import either
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

    def each_group(self, batch: tirx.Expr, body: Callable[[Group], None]) -> None:
        """Write `body` for all groups, in a parallel loop if there is enough work."""
        layer, groups = self.layer, -(-self.layer.padded // self.width)
        one = layer.hidden * layer.hidden * len(self.gates) // layer.together
        if groups == 1 or (layer.batch is not None and layer.batch * one < _PARALLEL_WORK):
            self._loop(build.serial, body)
        elif layer.batch is not None or one >= _PARALLEL_WORK:
            self._loop(build.parallel, body)
        else:
            either(
                batch * number(one) >= number(_PARALLEL_WORK),
                lambda: self._loop(build.parallel, body),
                lambda: self._loop(build.serial, body),
            )

    def _loop(self, kind: Callable[..., AbstractContextManager[tirx.Expr]], body: Callable[[Group], None]) -> None:
        layer, width = self.layer, self.width
        groups, whole = -(-layer.padded // width), layer.hidden // width
        rest = layer.padded - whole * width, layer.hidden - whole * width
        with kind(number(0), number(groups)) as place:
            first = place * number(width)
            if whole == groups:
                body(Group(first, width, width))
            elif whole == 0:
                body(Group(number(0), *rest))
            else:
                either(
                    place < number(whole),
                    lambda: body(Group(first, width, width)),
                    lambda: body(Group(number(whole * width), *rest)),
                )


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
        count = build.bind(tirx.max(tirx.floordiv(batch + number(phase.rows - 1), number(phase.rows)), number(1)))
        least = build.bind(tirx.floordiv(batch, count))
        return cls(phase.rows, None, count, least, build.bind(batch - least * count))

    def each(self, body: Callable[[tirx.Expr, int], None]) -> None:
        """Write `body` for the first row and the size of every tile."""
        sizes = list(self._sizes())
        with build.serial(number(0), self.count) as place:
            first = build.bind(place * self.least + tirx.min(place, self.longer))
            size = build.bind(self.least + tirx.Select(place < self.longer, number(1), number(0)))
            self._chosen(sizes, first, size, body)

    def _sizes(self) -> Iterator[int]:
        if self.batch is None:
            yield from range(1, self.most + 1)
            return
        least, longer = int(self.least), int(self.longer)
        yield from [least, least + 1] if longer else [least]

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
