"""How a step of a recurrent layer is divided: groups of columns, and the sizes of tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.sizes import Size, is_number

_MOST_ROWS = 8
"""The most rows of a tile: each has code of its own."""

_CHAINS = 8
"""Sums of a single row that are computed together: a multiply-add waits for the one before."""

_PARALLEL_WORK = 1 << 17
"""The fewest multiply-adds of a step that are divided among threads: two or three microseconds of one, which waits for
weights from a second-level cache. Those of bytes are four times as fast."""


_ANY = range(1, 1 << 30)
"""Numbers of rows of a batch."""


@dataclass(frozen=True)
class Group:
    """Columns of the state that a task computes for all rows: `stored` from `first` on, of which `columns` exist.

    Batches of a number that is known only at run time are `among` some numbers where the group is computed.
    """

    first: tirx.Expr
    stored: int
    columns: int
    among: range


_Write = Callable[[Group], None]


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

    def each_group(self, batch: Size, sums: _Write, cells: _Write) -> None:
        """Write `sums` and `cells` for all groups, in a parallel loop if there is enough work."""
        layer, groups = self.layer, -(-self.layer.padded // self.width)
        one = layer.hidden * layer.hidden * len(self.gates) // layer.together
        if groups == 1 or (is_number(batch) and batch * one < _PARALLEL_WORK):
            self._loop("serial", sums, cells)
        elif is_number(batch) or one >= _PARALLEL_WORK:
            self._loop("parallel", sums, cells)
        else:
            most = -(-_PARALLEL_WORK // one)
            emit.either(
                index(batch) >= index(most),
                lambda: self._loop("parallel", sums, cells, range(most, _ANY.stop)),
                lambda: self._loop("serial", sums, cells, range(1, most)),
            )

    def _loop(self, kind: str, sums: _Write, cells: _Write, among: range = _ANY) -> None:
        layer, width = self.layer, self.width
        groups, whole = -(-layer.padded // width), layer.hidden // width
        rest = layer.padded - whole * width, layer.hidden - whole * width

        def write(group: Group) -> None:
            sums(group)
            cells(group)

        with emit.loop(groups, kind) as place:
            each = Group(place * index(width), width, width, among)
            last = Group(index(whole * width), *rest, among)
            if whole in (0, groups):
                write(each if whole else last)
            elif last.stored == width:  # the sums of all groups have the same code
                sums(each)
                emit.either(place < index(whole), partial(cells, each), partial(cells, last))
            else:
                emit.either(place < index(whole), partial(write, each), partial(write, last))
