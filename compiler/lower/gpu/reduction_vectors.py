"""Reductions of rows where work items run one after another on vector units: an item takes a row, or 16 side by side.

Terms that lie side by side are accumulated in the lanes of a vector, which are merged by halves at the end; where rows
lie side by side, each lane has a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tvm import ir, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.blocks import dtype_of
from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.accumulate import Accumulator
from heterocc.compiler.lower.gpu.row_code import assign, at_element, hoisted, steps
from heterocc.compiler.lower.gpu.rows import Axes, Output, Reduction, Rows

LANES = (16, 8, 4)
"""Widths of vectors, the best first."""

_VECTOR_CALLS = frozenset(f"tirx.{name}" for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "fabs", "erf", "pow"))
_VECTOR_NODES = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


@dataclass(frozen=True, slots=True)
class Lanes:
    """What the lanes of a vector are: neighbours in a row, or neighbouring rows; one lane where nothing lies so."""

    count: int
    along: Literal["row", "rows"]


def lanes_of(rows: Rows) -> Lanes:
    """The lanes that suit the kernel."""
    parts = [(e, r.axes) for r in rows.reductions for e in r.accumulator.terms]
    parts += [(o.store.value, o.axes) for o in rows.outputs]
    if all(vectorizable(hoisted(e, axes)[0]) for e, axes in parts) and steps(rows, across=False) <= {0, 1}:
        shortest = min(axes.length for _, axes in parts if axes.length > 1 or rows.length == 1)
        return Lanes(next((n for n in LANES if n <= shortest), 1), "row")
    if all(vectorizable(e) for e, _ in parts) and rows.extents and steps(rows, across=True) <= {0, 1}:
        return Lanes(next((n for n in LANES if rows.extents[-1] % n == 0), 1), "rows")
    return Lanes(1, "row")


def vectorizable(expr: Any) -> bool:
    """Whether an expression is arithmetic of float32 that vectors know."""
    if dtype_of(expr) != "float32":
        return False
    if isinstance(expr, TensorLoad | tirx.FloatImm | tirx.Var):
        return True
    if isinstance(expr, _VECTOR_NODES):
        return vectorizable(expr.a) and vectorizable(expr.b)
    if isinstance(expr, tirx.Cast):
        return vectorizable(expr.value)
    if isinstance(expr, ir.Call):
        return getattr(expr.op, "name", "") in _VECTOR_CALLS and all(vectorizable(a) for a in expr.args)
    return False


@dataclass
class VectorWriter:
    """Writes the kernel; `results` are those of a row, each with the expression of it in a lane."""

    rows: Rows
    lanes: Lanes
    grid: int
    buffers: list[Any] = field(default_factory=list)
    results: list[tuple[Any, Callable[[Any], Any]]] = field(default_factory=list)

    def kernel(self, function: Any) -> Any:
        """The function with all its loops bound."""
        together = self.lanes.count if self.lanes.along == "rows" else 1
        count = self.rows.count // together

        def item(number: Any) -> Any:
            at = nest.split_index(number * nest.index(together), self.rows.extents)
            parts = [step for r in self.rows.reductions for step in self._reduction(r, at)]
            return nest.sequence([*parts, *(self._output(o, at) for o in self.rows.outputs)])

        def group(number: Any) -> Any:
            inside = number < nest.index(count) if nest.beyond(count, self.grid) else None
            return nest.launch("threadIdx.x", 1, lambda _: nest.when(inside, item(number)))

        return nest.kernel(function, self.buffers, nest.launch_groups(count, self.grid, group))

    def _reduction(self, reduction: Reduction, at: list[Any]) -> list[Any]:
        accumulator, axes, width = reduction.accumulator, reduction.axes, self.lanes.count
        sums = [self._buffer(d) for d in accumulator.dtypes]
        parts = [
            _vector(width, lambda lane: assign(accumulator.starts, [(b, [lane]) for b in sums])),
        ]

        once, named_terms = self._once(accumulator.terms, axes, at)
        parts += once

        def add(element: Any, lane: Any) -> Any:
            terms = tuple(self._at(t, axes, at, element, lane) for t in named_terms)
            merged = accumulator.merge(tuple(b[lane] for b in sums), terms)
            return assign(merged, [(b, [lane]) for b in sums])

        parts += self._elements(axes.length, add)
        if self.lanes.along == "row":
            parts += _halved(accumulator, sums, width)
        for (buffer, indices), total, index in zip(accumulator.targets, sums, range(len(sums)), strict=True):
            self.results.append((buffer, _lane_of(total, buffer, self.lanes.along == "row")))
            if index in reduction.stored:
                parts.append(self._stored(buffer, indices, axes, at))
        return parts

    def _stored(self, buffer: Any, indices: Any, axes: Axes, at: list[Any]) -> Any:
        result = self.results[-1][1]

        def store(lane: Any) -> Any:
            where = [self._at(i, axes, at, nest.index(0), lane) for i in indices]
            return tirx.BufferStore(buffer, result(lane), where)

        return _vector(self.lanes.count if self.lanes.along == "rows" else 1, store)

    def _once(self, exprs: Sequence[Any], axes: Axes, at: list[Any]) -> tuple[list[Any], list[Any]]:
        """What the expressions need once a row, and the expressions with names for it; nothing for rows in lanes."""
        if self.lanes.along == "rows":
            return [], list(exprs)
        found = [hoisted(e, axes) for e in exprs]
        zero = nest.index(0)
        named = [part for _, parts in found for part in parts]
        return [tirx.Bind(n, self._at(e, axes, at, zero, zero)) for n, e in named], [e for e, _ in found]

    def _output(self, output: Output, at: list[Any]) -> Any:
        once, (result,) = self._once([output.store.value], output.axes, at)

        def store(element: Any, lane: Any) -> Any:
            value = self._at(result, output.axes, at, element, lane)
            where = [self._at(i, output.axes, at, element, lane) for i in output.store.indices]
            return tirx.BufferStore(output.store.buffer, value, where)

        return nest.sequence([*once, *self._elements(output.axes.length, store)])

    def _elements(self, length: int, body: Callable[[Any, Any], Any]) -> list[Any]:
        """Run `body(element, lane)` for all elements of an item's rows."""
        width = self.lanes.count
        if self.lanes.along == "rows":
            return [nest.loop("step", length, lambda i: _vector(width, lambda lane: body(i, lane)))]
        whole, rest = divmod(length, width)
        parts = []
        if whole:
            parts.append(
                nest.loop(
                    "step",
                    whole,
                    lambda i: _vector(width, lambda lane: body(i * nest.index(width) + lane, lane)),
                )
            )
        if rest:
            parts.append(nest.loop("rest", rest, lambda i: body(nest.index(whole * width) + i, i)))
        return parts

    def _at(self, expr: Any, axes: Axes, at: list[Any], element: Any, lane: Any) -> Any:
        row = [*at[:-1], at[-1] + lane] if self.lanes.along == "rows" else at
        return at_element(expr, axes, row, element, [(buffer, value(lane)) for buffer, value in self.results])

    def _buffer(self, dtype: str) -> Any:
        buffer = tirx.decl_buffer((self.lanes.count,), dtype, f"part{len(self.buffers)}", scope="local")
        self.buffers.append(buffer)
        return buffer


def _halved(accumulator: Accumulator, sums: list[Any], width: int) -> list[Any]:
    """Merge the lanes into the first, by halves."""
    parts = []
    half = width // 2
    while half:
        far = nest.index(half)

        def step(lane: Any, far: Any = far) -> Any:
            merged = accumulator.merge(tuple(b[lane] for b in sums), tuple(b[lane + far] for b in sums))
            return assign(merged, [(b, [lane]) for b in sums])

        parts.append(_vector(half, step))
        half //= 2
    return parts


def _lane_of(total: Any, buffer: Any, first: bool) -> Callable[[Any], Any]:
    return lambda lane: total[nest.index(0) if first else lane].astype(dtype_of(buffer))


def _vector(count: int, body: Callable[[Any], Any]) -> Any:
    return nest.loop("lane", count, body, tirx.ForKind.VECTORIZED)
