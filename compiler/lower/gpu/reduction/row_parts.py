"""Rows that several work groups share: the launches, and the partial results stored between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from tvm import tirx

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.reduction.accumulate import Exprs
from heterocc.compiler.lower.gpu.reduction.row_form import Reduction, Rows
from heterocc.compiler.lower.gpu.reduction.teams import part_dtypes


class Parts:
    """The results of `count` parts of each row: a buffer [result, part, row] for each dtype."""

    def __init__(self, rows: Rows, count: int) -> None:
        self._places: list[tuple[Reduction, list[tuple[str, int]]]] = []
        sizes = dict.fromkeys(part_dtypes(rows), 0)
        for reduction in rows.reductions:
            places = []
            for dtype in reduction.accumulator.dtypes:
                places.append((dtype, sizes[dtype]))
                sizes[dtype] += 1
            self._places.append((reduction, places))
        self.buffers = {
            dtype: tirx.decl_buffer(
                tuple(tirx.IntImm("int64", n) for n in (size, count, rows.count)), dtype, f"parts{i}"
            )
            for i, (dtype, size) in enumerate(sizes.items())
        }

    def loads(self, reduction: Reduction, row: tirx.Expr, part: tirx.Expr) -> Exprs:
        """Load the results of a part."""
        return tuple(tirx.BufferLoad(self.buffers[dtype], at) for dtype, at in self._at(reduction, row, part))

    def stores(
        self, reduction: Reduction, row: tirx.Expr, part: tirx.Expr, values: Sequence[tirx.Expr]
    ) -> list[tirx.BufferStore]:
        """Store the results of a part."""
        places = self._at(reduction, row, part)
        return [tirx.BufferStore(self.buffers[d], v, at) for (d, at), v in zip(places, values, strict=True)]

    def _at(self, reduction: Reduction, row: tirx.Expr, part: tirx.Expr) -> list[tuple[str, list[tirx.Expr]]]:
        found = next(places for known, places in self._places if known is reduction)
        return [(dtype, [nest.index(number), part, row]) for dtype, number in found]


Item = TypeVar("Item")
"""The indices of a work item: its rows, and its part of them."""


class PartsWriter(ABC, Generic[Item]):
    """Writes a kernel of rows: one launch, or one for every reduction and one for the outputs."""

    rows: Rows
    buffers: list[tirx.Buffer]

    @property
    @abstractmethod
    def parts(self) -> int:
        """The number of groups or items that share each row."""

    def kernel(self, function: tirx.PrimFunc) -> tirx.PrimFunc:
        """The function with its launches."""
        rows = self.rows
        if self.parts == 1:
            return nest.kernel(function, self.buffers, self._launch(1, self._whole))
        left = Parts(rows, self.parts)
        last = self.parts if any(o.axes.length > 1 for o in rows.outputs) else 1
        launches = [self._launch(self.parts, partial(self._part, i, left)) for i in range(len(rows.reductions))]
        launches.append(self._launch(last, partial(self._rest, left)))
        return nest.kernel(function, [*left.buffers.values(), *self.buffers], nest.sequence(launches))

    @abstractmethod
    def _launch(self, parts: int, body: Callable[[Item], list[tirx.Stmt]]) -> tirx.Stmt:
        """Run `body` for every row, or for each of its parts."""

    @abstractmethod
    def _whole(self, item: Item) -> list[tirx.Stmt]:
        """All reductions of a row, then the outputs."""

    @abstractmethod
    def _part(self, which: int, left: Parts, item: Item) -> list[tirx.Stmt]:
        """One reduction of a part of a row, with the results of the earlier reductions."""

    @abstractmethod
    def _rest(self, left: Parts, item: Item) -> list[tirx.Stmt]:
        """The outputs, from the results of all parts."""
