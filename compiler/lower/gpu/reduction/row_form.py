"""Analysis of kernels that reduce rows and compute outputs from the results.

A row consists of the terms of one result, its elements. Sums, means and maxima over any axes are such kernels, and so
are softmax and normalisations: several reductions of the same rows, then an output for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.analysis import normalize_prim_func

from heterocc.compiler.lower.gpu.reduction.accumulate import Accumulator, UnknownFormError, accumulator_of
from heterocc.compiler.lower.kernels.expressions import loads, uses

if TYPE_CHECKING:
    from tvm.s_tir.schedule import SBlockRV


_SPATIAL, _REDUCED = int(tirx.IterVar.DataPar), int(tirx.IterVar.CommReduce)


@dataclass(frozen=True, slots=True)
class Axes:
    """A block's iterators: of the row, by the rows' axes, of its elements, and those of extent 1."""

    row: tuple[tirx.Var, ...]
    element: tuple[tirx.Var, ...]
    extents: tuple[int, ...]
    units: tuple[tirx.Var, ...]

    @property
    def length(self) -> int:
        """The number of elements of a row."""
        return prod(self.extents)


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction of every row; `stored` are the indices of its results that are outputs of the kernel."""

    axes: Axes
    accumulator: Accumulator
    stored: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A store for every element of a row, or one per row if its rows have one element."""

    axes: Axes
    store: tirx.BufferStore


@dataclass(frozen=True, slots=True)
class Rows:
    """A kernel of `count` rows, the product of `extents`: first the reductions, in order, then the outputs."""

    extents: tuple[int, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Output, ...]

    @property
    def count(self) -> int:
        """The number of rows."""
        return prod(self.extents)

    @property
    def length(self) -> int:
        """The number of terms of the longest reduction."""
        return max(r.axes.length for r in self.reductions)

    @property
    def passes(self) -> int:
        """The number of passes over the elements of a row."""
        return len(self.reductions) + any(o.axes.length > 1 for o in self.outputs)


def rows_of(function: tirx.PrimFunc) -> Rows | None:
    """The kernel as reductions of rows; None if it has another form or a shape that is not constant."""
    schedule = s_tir.Schedule(function)
    blocks = normalize_prim_func(schedule)
    if blocks is None or not any("R" in b.dom_kind() for b in blocks):
        return None
    if any(not isinstance(extent, int) or extent == 0 for b in blocks for extent in b.dom()):
        return None
    for info in blocks:
        if "R" not in info.dom_kind():
            inline(schedule, info.block_rv)
    left = [schedule.get(b) for b in schedule.get_child_blocks(schedule.get_sblock("root"))]
    try:
        return _Analysis(tuple(function.params)).rows(left)
    except UnknownFormError:
        return None


def joins_rows(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is one of rows, but no matrix product."""
    rows = rows_of(function)
    return rows is not None and not any(multiplies(r) for r in rows.reductions)


def multiplies(reduction: Reduction) -> bool:
    """Whether terms are products of operands that vary along the row and between rows, as in a matrix product."""
    rows = []
    for load in reduction.accumulator.loads:
        if any(uses(i, v) for i in load.indices for v in reduction.axes.element):
            rows.append(frozenset(p for p, v in enumerate(reduction.axes.row) if any(uses(i, v) for i in load.indices)))
    return len(set(rows)) > 1


def inline(schedule: s_tir.Schedule, block: SBlockRV) -> None:
    """Inline a block if possible."""
    try:
        schedule.compute_inline(block)
    except s_tir.ScheduleError:  # an output
        return


@dataclass
class _Analysis:
    """The buffers of the results so far, with the rows' axis of each dimension, and the buffers written by outputs."""

    params: tuple[tirx.Buffer, ...]
    extents: tuple[int, ...] | None = None
    results: list[tuple[tirx.Buffer, tuple[int | None, ...]]] = field(default_factory=list)
    written: list[tirx.Buffer] = field(default_factory=list)

    def rows(self, blocks: Sequence[s_tir.SBlock]) -> Rows:
        """Analyse all blocks. Raises UnknownFormError."""
        reductions: list[Reduction] = []
        outputs: list[Output] = []
        for block in blocks:
            kinds = {int(v.iter_type) for v in block.iter_vars}
            if not kinds <= {_SPATIAL, _REDUCED}:
                raise UnknownFormError(block.name_hint)
            if _REDUCED in kinds:
                if outputs:
                    raise UnknownFormError(block.name_hint)
                reductions.append(self._reduction(block))
            else:
                outputs.append(self._output(block))
        if self.extents is None:
            raise UnknownFormError("nothing is reduced")
        return Rows(self.extents, tuple(reductions), tuple(outputs))

    def _reduction(self, block: s_tir.SBlock) -> Reduction:
        reduced = [v for v in block.iter_vars if int(v.iter_type) == _REDUCED]
        spatial = [v for v in block.iter_vars if int(v.iter_type) == _SPATIAL and int(v.dom.extent) > 1]
        accumulator = accumulator_of(block)
        reads = accumulator.loads
        if any(_windowed(load, spatial, reduced) for load in reads):
            raise UnknownFormError(block.name_hint)
        sizes = tuple(int(v.dom.extent) for v in spatial)
        if self.extents is None:
            self.extents = sizes
        row = self._row(reads, spatial)
        for place, size in enumerate(self.extents):
            if row[place] is None:
                free = [v for v in spatial if int(v.dom.extent) == size and not any(v.var.same_as(r) for r in row)]
                if not free:
                    raise UnknownFormError(block.name_hint)
                row[place] = free[0].var
        if len(spatial) != len(row):
            raise UnknownFormError(block.name_hint)
        stored = []
        for index, (buffer, indices) in enumerate(accumulator.targets):
            self._no_output(buffer)
            self.results.append((buffer, _labels(indices, row)))
            if self._param(buffer):
                stored.append(index)
        elements = [v for v in reduced if int(v.dom.extent) > 1]
        return Reduction(_axes(row, elements, block.iter_vars), accumulator, tuple(stored))

    def _output(self, block: s_tir.SBlock) -> Output:
        store = block.body
        if not isinstance(store, tirx.BufferStore) or not self._param(store.buffer):
            raise UnknownFormError(block.name_hint)
        spatial = [v for v in block.iter_vars if int(v.dom.extent) > 1]
        row = self._row(loads(store.value), spatial)
        if any(v is None for v in row):
            raise UnknownFormError(block.name_hint)
        self._no_output(store.buffer)
        self.written.append(store.buffer)
        elements = [v for v in spatial if not any(v.var.same_as(r) for r in row)]
        return Output(_axes(row, elements, block.iter_vars), store)

    def _row(self, loads: Sequence[TensorLoad], spatial: Sequence[tirx.IterVar]) -> list[tirx.Var | None]:
        """The iterator for each of the rows' axes, as used in loads of results; None if no load determines it."""
        if self.extents is None:
            raise UnknownFormError("an output before the first reduction")
        found: list[Any] = [None] * len(self.extents)
        for load in loads:
            if any(load.source.same_as(b) for b in self.written):
                raise UnknownFormError("an output is read again")
            labels = next((known for b, known in self.results if load.source.same_as(b)), None)
            if labels is None:
                if not self._param(load.source):
                    raise UnknownFormError("a buffer between the blocks")
                continue
            for index, label in zip(load.indices, labels, strict=True):
                if label is None:
                    continue
                iterator = next((v for v in spatial if v.var.same_as(index)), None)
                if iterator is None or int(iterator.dom.extent) != self.extents[label]:
                    raise UnknownFormError("a result is read elsewhere than in its row")
                if found[label] is not None and not found[label].same_as(index):
                    raise UnknownFormError("a result of two rows")
                found[label] = iterator.var
        if any(a is not None and a.same_as(b) for i, a in enumerate(found) for b in found[:i] if b is not None):
            raise UnknownFormError("one iterator for two axes")
        return found

    def _param(self, buffer: tirx.Buffer) -> bool:
        return any(buffer.same_as(p) for p in self.params)

    def _no_output(self, buffer: tirx.Buffer) -> None:
        if any(buffer.same_as(b) for b in [*self.written, *(b for b, _ in self.results)]):
            raise UnknownFormError("a buffer is written twice")


def _axes(row: Sequence[tirx.Var], elements: list[tirx.IterVar], iterators: Sequence[tirx.IterVar]) -> Axes:
    units = tuple(v.var for v in iterators if int(v.dom.extent) == 1)
    return Axes(tuple(row), tuple(v.var for v in elements), tuple(int(v.dom.extent) for v in elements), units)


def _labels(indices: Sequence[tirx.Expr], row: Sequence[tirx.Var]) -> tuple[int | None, ...]:
    """The rows' axis for each index of a result, None if the index is constant."""
    labels: list[int | None] = []
    for index in indices:
        place = next((i for i, v in enumerate(row) if v.same_as(index)), None)
        if place is None and not isinstance(index, tirx.IntImm | tirx.Var):
            raise UnknownFormError("a result is stored elsewhere than in its row")
        labels.append(place)
    if sorted(x for x in labels if x is not None) != list(range(len(row))):
        raise UnknownFormError("a result lacks an axis of the rows")
    return tuple(labels)


def _windowed(load: TensorLoad, spatial: Sequence[tirx.IterVar], reduced: Sequence[tirx.IterVar]) -> bool:
    """Whether an index depends both on the row and on the term, as in pooling and convolution."""
    terms = [v for v in reduced if int(v.dom.extent) > 1]
    return any(all(any(uses(index, v.var) for v in some) for some in (spatial, terms)) for index in load.indices)
