"""Reductions of rows on devices that run work items one after another on vector units: an item reduces 1 to 16 rows.

If the terms of a row are contiguous, they are accumulated in the lanes of a vector, which are merged by halves at the
end. If the rows are contiguous, each lane reduces a separate row. Reductions that cannot be vectorised (integers, index
positions) are unrolled with several accumulators in registers, to hide latency. Several items share a long row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import tirx

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.reduction.accumulate import Accumulator, Exprs
from heterocc.compiler.lower.gpu.reduction.row_code import assign, at_element, hoisted
from heterocc.compiler.lower.gpu.reduction.row_form import Axes, Output, Reduction, Rows
from heterocc.compiler.lower.gpu.reduction.row_lanes import Lanes, Share
from heterocc.compiler.lower.gpu.reduction.row_parts import Parts, PartsWriter
from heterocc.compiler.lower.kernels.expressions import dtype_of


@dataclass(frozen=True, slots=True)
class _Place:
    """The indices of an item: its (first) row by the rows' axes (`at`) and among all rows (`linear`), and its part of
    the row, of `parts`."""

    at: list[tirx.Expr]
    linear: tirx.Expr
    part: tirx.Expr
    parts: int


@dataclass
class VectorWriter(PartsWriter[_Place]):
    """Writes the kernel; `results` are the buffers of a row's results, each with its value in a lane."""

    rows: Rows
    share: Share
    grid: int
    buffers: list[tirx.Buffer] = field(default_factory=list)
    results: list[tuple[tirx.Buffer, Callable[[tirx.Expr], tirx.Expr]]] = field(default_factory=list)

    @property
    def lanes(self) -> Lanes:
        """The lanes of an item."""
        return self.share.lanes

    @property
    def parts(self) -> int:
        """The number of items that share each row."""
        return self.share.parts

    def _launch(self, parts: int, body: Callable[[_Place], list[tirx.Stmt]]) -> tirx.Stmt:
        """Run `body` for every part of every bundle. The last bundle of an axis may overlap the one before."""
        together = self.lanes.count if self.lanes.along == "rows" else 1
        length = self.rows.extents[-1] if self.rows.extents else 1
        along = -(-length // together)
        count = self.rows.count // length * along
        bundles = self.share.bundles if parts == 1 else 1
        items = -(-count // bundles) * parts

        def item(number: tirx.Expr, part: tirx.Expr) -> tirx.Stmt:
            at = nest.split_index(number, [*self.rows.extents[:-1], along])
            linear = number
            if together > 1:
                last = tirx.min(at[-1] * nest.index(together), nest.index(length - together))
                at = [*at[:-1], last if length % together else at[-1] * nest.index(together)]
                line = tirx.floordiv(number, nest.index(along)) if along != count else nest.index(0)
                linear = line * nest.index(length) + at[-1]
            self.results = []
            return nest.sequence(body(_Place(at if self.rows.extents else [], linear, part, parts)))

        def several(number: tirx.Expr) -> tirx.Stmt:
            if parts > 1:
                return item(tirx.floordiv(number, nest.index(parts)), tirx.floormod(number, nest.index(parts)))

            def one(place: tirx.Expr) -> tirx.Stmt:
                bundle = number * nest.index(bundles) + place
                inside = bundle < nest.index(count) if count % bundles else None
                return nest.when(inside, item(bundle, nest.index(0)))

            return nest.loop("bundle", bundles, one)

        def group(number: tirx.Expr) -> tirx.Stmt:
            inside = number < nest.index(items) if nest.beyond(items, self.grid) else None
            return nest.launch("threadIdx.x", 1, lambda _: nest.when(inside, several(number)))

        return nest.launch_groups(items, self.grid, group)

    def _whole(self, place: _Place) -> list[tirx.Stmt]:
        """All reductions of a row, then the outputs."""
        found = [step for r in self.rows.reductions for step in (*self._reduced(r, place), *self._stored(r, place))]
        return [*found, *(self._output(o, place) for o in self.rows.outputs)]

    def _part(self, which: int, left: Parts, place: _Place) -> list[tirx.Stmt]:
        """One reduction of a part of a row, with the results of the earlier reductions."""
        found = [step for r in self.rows.reductions[:which] for step in self._gathered(r, left, place)]
        reduction = self.rows.reductions[which]
        found += self._reduced(reduction, place)
        values = [value for _, value in self.results[-len(reduction.accumulator.targets) :]]

        def store(lane: tirx.Expr) -> tirx.Stmt:
            wide = zip(values, reduction.accumulator.dtypes, strict=True)
            stores = left.stores(reduction, place.linear + lane, place.part, [v(lane).astype(d) for v, d in wide])
            return nest.sequence(stores)

        return [*found, self._lanes(self._rows(), store)]

    def _rest(self, left: Parts, place: _Place) -> list[tirx.Stmt]:
        """The outputs, from the results of all parts."""
        found = []
        for reduction in self.rows.reductions:
            found += [*self._gathered(reduction, left, place), *self._stored(reduction, place)]
        return [*found, *(self._output(o, place) for o in self.rows.outputs)]

    def _gathered(self, reduction: Reduction, left: Parts, place: _Place) -> list[tirx.Stmt]:
        """The results of a reduction, merged from those of the parts by every item."""
        accumulator, width = reduction.accumulator, self._rows()
        sums = [nest.add_part(self.buffers, width, d) for d in accumulator.dtypes]
        start = self._lanes(width, lambda lane: assign(accumulator.starts, [(b, [lane]) for b in sums]))

        def add(part: tirx.Expr) -> tirx.Stmt:
            def one(lane: tirx.Expr) -> tirx.Stmt:
                terms = left.loads(reduction, place.linear + lane, part)
                merged = accumulator.merge(tuple(b[lane] for b in sums), terms)
                return assign(merged, [(b, [lane]) for b in sums])

            return self._lanes(width, one)

        self._know(accumulator, sums)
        return [start, nest.loop("part", self.share.parts, add)]

    def _reduced(self, reduction: Reduction, place: _Place) -> list[tirx.Stmt]:
        """Reduce the item's part of its rows."""
        accumulator, axes, width = reduction.accumulator, reduction.axes, self.lanes.count
        sums = [nest.add_part(self.buffers, width, d) for d in accumulator.dtypes]
        found = [self._lanes(width, lambda lane: assign(accumulator.starts, [(b, [lane]) for b in sums]))]
        once, named_terms = self._once(accumulator.terms, axes, place)
        found += once

        def add(element: tirx.Expr, lane: tirx.Expr) -> tirx.Stmt:
            terms = tuple(self._at(t, axes, place, element, lane) for t in named_terms)
            merged = accumulator.merge(tuple(b[lane] for b in sums), terms)
            return assign(merged, [(b, [lane]) for b in sums])

        found += self._elements(axes.length, place, width, add)
        if self.lanes.along == "row":
            found += self._halved(accumulator, sums, width)
        self._know(accumulator, sums)
        return found

    def _know(self, accumulator: Accumulator, sums: Sequence[tirx.Buffer]) -> None:
        """Replace later loads of the results by the registers."""
        first = self.lanes.along == "row"
        for (buffer, _), total in zip(accumulator.targets, sums, strict=True):
            self.results.append((buffer, _lane_of(total, buffer, first)))

    def _stored(self, reduction: Reduction, place: _Place) -> list[tirx.Stmt]:
        """Store the latest results that are outputs of the kernel."""
        targets = reduction.accumulator.targets
        values = self.results[-len(targets) :]
        found = []
        for which in reduction.stored:
            (buffer, indices), value = targets[which], values[which][1]

            def store(
                lane: tirx.Expr,
                buffer: tirx.Buffer = buffer,
                indices: tuple[tirx.Expr, ...] = indices,
                value: Callable[[tirx.Expr], tirx.Expr] = value,
            ) -> tirx.BufferStore:
                target = [self._at(i, reduction.axes, place, nest.index(0), lane) for i in indices]
                return tirx.BufferStore(buffer, value(lane), target)

            found.append(nest.when(_first(place), self._lanes(self._rows(), store)))
        return found

    def _rows(self) -> int:
        """The number of rows of an item."""
        return self.lanes.count if self.lanes.along == "rows" else 1

    def _once(self, exprs: Exprs, axes: Axes, place: _Place) -> tuple[list[tirx.Bind], list[tirx.Expr]]:
        """Bindings for the subexpressions that are constant in a row, and the expressions with these replaced.

        There are none if lanes are rows.
        """
        if self.lanes.along == "rows":
            return [], list(exprs)
        found = [hoisted(e, axes) for e in exprs]
        zero = nest.index(0)
        named = [part for _, parts in found for part in parts]
        return [tirx.Bind(n, self._at(e, axes, place, zero, zero)) for n, e in named], [e for e, _ in found]

    def _output(self, output: Output, place: _Place) -> tirx.Stmt:
        once, (result,) = self._once((output.store.value,), output.axes, place)

        def store(element: tirx.Expr, lane: tirx.Expr) -> tirx.BufferStore:
            value = self._at(result, output.axes, place, element, lane)
            target = [self._at(i, output.axes, place, element, lane) for i in output.store.indices]
            return tirx.BufferStore(output.store.buffer, value, target)

        loop = self.lanes.along == "row" and not self.lanes.vector  # elements are independent: no need to unroll
        width = 1 if loop else self.lanes.count
        return nest.sequence([*once, *self._elements(output.axes.length, place, width, store)])

    def _elements(
        self, length: int, place: _Place, width: int, body: Callable[[tirx.Expr, tirx.Expr], tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """Run `body(element, lane)` for all elements in the item's part of its rows; the last has the remainder."""
        along = self.lanes.along == "row"
        step = width if along else 1

        def run(start: tirx.Expr, count: int) -> tirx.Stmt:
            def one(i: tirx.Expr) -> tirx.Stmt:
                first = start + i * nest.index(step)
                return self._lanes(width, lambda lane: body(first + lane if along else first, lane))

            return nest.loop("step", count, one)

        each = length // step // place.parts
        parts = [run(place.part * nest.index(each * step), each)] if each else []
        over = (
            [run(nest.index(each * step * place.parts), more)] if (more := length // step - each * place.parts) else []
        )
        if rest := length % step:
            over.append(nest.loop("rest", rest, lambda i: body(nest.index(length - rest) + i, i)))
        if over:
            last = place.part >= nest.index(place.parts - 1) if place.parts > 1 else None
            parts.append(nest.when(last, nest.sequence(over)))
        return parts

    def _at(self, expr: tirx.Expr, axes: Axes, place: _Place, element: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        row = [*place.at[:-1], place.at[-1] + lane] if self.lanes.along == "rows" else place.at
        return at_element(expr, axes, row, element, [(buffer, value(lane)) for buffer, value in self.results])

    def _lanes(self, count: int, body: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
        if self.lanes.vector:
            return nest.loop("lane", count, body, tirx.ForKind.VECTORIZED)
        return nest.sequence([body(nest.index(lane)) for lane in range(count)])

    def _halved(self, accumulator: Accumulator, sums: list[tirx.Buffer], width: int) -> list[tirx.Stmt]:
        """Merge the lanes into the first, by halves."""
        parts = []
        half = width // 2
        while half:
            far = nest.index(half)

            def step(lane: tirx.Expr, far: tirx.Expr = far) -> tirx.Stmt:
                merged = accumulator.merge(tuple(b[lane] for b in sums), tuple(b[lane + far] for b in sums))
                return assign(merged, [(b, [lane]) for b in sums])

            parts.append(self._lanes(half, step))
            half //= 2
        return parts


def _first(place: _Place) -> tirx.Expr | None:
    return place.part < nest.index(1) if place.parts > 1 else None


def _lane_of(total: tirx.Buffer, buffer: tirx.Buffer, first: bool) -> Callable[[tirx.Expr], tirx.Expr]:
    return lambda lane: total[nest.index(0) if first else lane].astype(dtype_of(buffer))
