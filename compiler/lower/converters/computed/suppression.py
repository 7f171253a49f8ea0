"""NonMaxSuppression: candidates by descending score, of which those that overlap an earlier one too much are dropped.

The selection is computed once, into a table of as many rows as there are boxes of all classes. Its first two rows hold
counters, the first of them the number of selected boxes. The candidates of a class are a heap from the end of the table
backwards: it has less than its rows for them, and loses a number for each row of a selected box.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.computed.numbers import (
    element,
    elements,
    loop,
    prepared,
    results,
    sizes,
    table,
    vector,
    whole,
)
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dtype_of
from heterocc.compiler.symbolic.given import Shape
from heterocc.compiler.symbolic.sizes import number

_HEAD = 2
Buffers = Sequence[tirx.Buffer]


def _rows(shapes: Sequence[Shape]) -> Shape:
    """The shape of the table."""
    scores = shapes[1]
    if scores is None or len(scores) != 3 or None in scores:
        return None
    total = number(1)
    for size in scores:
        total = total * (size or total)
    return total + number(_HEAD), number(3)


@prepared("NonMaxSuppression", _rows)
def _select(
    ctx: Context,
    boxes: relax.Expr,
    scores: relax.Expr,
    most: relax.Expr | None = None,
    overlap: relax.Expr | None = None,
    least: relax.Expr | None = None,
) -> relax.Expr:
    if dtype_of(boxes) != "float32" or dtype_of(scores) != "float32":
        raise NotImplementedError(f"boxes of {dtype_of(boxes)} are not supported")
    given = [g for g in (most, overlap, least) if g is not None]
    places = iter(range(2, 2 + len(given)))
    at = [None if g is None else next(places) for g in (most, overlap, least)]
    centred = bool(ctx.attrs.get("center_point_box", 0))

    def write(ins: Buffers, out: tirx.Buffer) -> tirx.Stmt:
        selection = _Selection(ins, out, at, centred)
        right = tirx.all(selection.overlap >= tirx.const(0, "float32"), selection.overlap <= tirx.const(1, "float32"))
        return tirx.SeqStmt([asserted(ctx, right, "the overlap is not from 0 to 1"), selection.statement()])

    return table(ctx, [boxes, scores, *given], ctx.result(), write, name="suppression")


class _Selection:
    """The statements that select boxes."""

    def __init__(self, ins: Buffers, out: tirx.Buffer, at: Sequence[int | None], centred: bool) -> None:
        self.boxes, self.scores, self.out, self.centred = ins[0], ins[1], out, centred
        self.most = whole(0) if at[0] is None else element(ins[at[0]])
        self.overlap = tirx.const(0, "float32") if at[1] is None else self._number(ins[at[1]])
        self.least = None if at[2] is None else self._number(ins[at[2]])

    @staticmethod
    def _number(buffer: tirx.Buffer) -> tirx.Expr:
        return buffer[tuple([whole(0)] * len(buffer.shape))]

    def _get(self, row: int, column: int) -> tirx.Expr:
        return self.out[whole(row), whole(column)]

    def _set(self, row: int, column: int, value: tirx.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.out, value, [whole(row), whole(column)])

    # counters: boxes of all classes, the size of the heap, the candidate; boxes of this class, whether to keep, a place
    @property
    def total(self) -> tirx.Expr:
        return self._get(0, 0)

    @property
    def size(self) -> tirx.Expr:
        return self._get(0, 1)

    @property
    def best(self) -> tirx.Expr:
        return self._get(0, 2)

    @property
    def chosen(self) -> tirx.Expr:
        return self._get(1, 0)

    @property
    def place(self) -> tirx.Expr:
        return self._get(1, 2)

    def _at(self, number: tirx.Expr) -> list[tirx.Expr]:
        """Where the table has an element of the heap."""
        flat = self.out.shape[0] * whole(3) - whole(1) - number
        return [tirx.floordiv(flat, whole(3)), tirx.floormod(flat, whole(3))]

    def _held(self, number: tirx.Expr) -> tirx.Expr:
        return self.out[tuple(self._at(number))]

    def _hold(self, number: tirx.Expr, value: tirx.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.out, value, self._at(number))

    def statement(self) -> tirx.Stmt:
        """All batches and classes."""
        batches, classes, _ = self.scores.shape
        return tirx.SeqStmt(
            [self._set(0, 0, whole(0)), loop(batches, lambda b: loop(classes, lambda c: self._one_class(b, c)))]
        )

    def _one_class(self, b: tirx.Var, c: tirx.Var) -> tirx.Stmt:
        count = self.scores.shape[2]
        begin = [self._set(0, 1, whole(0)), self._set(1, 0, whole(0))]

        def enter(i: tirx.Var) -> tirx.Stmt:
            held = tirx.SeqStmt([self._hold(self.size, i), self._set(0, 1, self.size + whole(1))])
            return held if self.least is None else tirx.IfThenElse(self.scores[b, c, i] > self.least, held, None)

        def order(i: tirx.Var) -> tirx.Stmt:
            return self._sink(b, c, tirx.floordiv(self.size, whole(2)) - whole(1) - i)

        goes_on = tirx.all(self.size > whole(0), self.chosen < self.most)
        return tirx.SeqStmt(
            [
                *begin,
                loop(count, enter),
                loop(tirx.floordiv(self.size, whole(2)), order),
                tirx.While(goes_on, self._candidate(b, c)),
            ]
        )

    def _sink(self, b: tirx.Var, c: tirx.Var, start: tirx.Expr) -> tirx.Stmt:
        """Exchange an element of the heap for the better of the two below it, until none is better."""

        def score(number: tirx.Expr) -> tirx.Expr:
            return self.scores[b, c, self._held(number)]

        def better(one: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
            """Whether an element has a higher score, or an equal one of an earlier box."""
            earlier = tirx.all(score(one) == score(other), self._held(one) < self._held(other))
            return tirx.any(score(one) > score(other), earlier)

        left = self.place * whole(2) + whole(1)
        right = tirx.min(left + whole(1), self.size - whole(1))
        child, upper, lower = (tirx.Var(name, "int64") for name in ("child", "upper", "lower"))
        exchange = tirx.SeqStmt(
            [
                tirx.Bind(upper, self._held(self.place)),
                tirx.Bind(lower, self._held(child)),
                self._hold(self.place, lower),
                self._hold(child, upper),
                self._set(1, 2, child),
            ]
        )
        end = self._set(1, 2, self.size)
        step = tirx.SeqStmt(
            [
                self._set(1, 1, tirx.if_then_else(better(right, left), right, left)),
                tirx.Bind(child, self._get(1, 1)),
                tirx.IfThenElse(better(child, self.place), exchange, end),
            ]
        )
        return tirx.SeqStmt([self._set(1, 2, start), tirx.While(left < self.size, step)])

    def _candidate(self, b: tirx.Var, c: tirx.Var) -> tirx.Stmt:
        """The next candidate: the box of the highest score that is left, of equal scores the first."""

        def clash(s: tirx.Var) -> tirx.Stmt:
            other = self.out[self.total - self.chosen + s + whole(_HEAD), whole(2)]
            return tirx.IfThenElse(self._overlaps(b, self.best, other), self._set(1, 1, whole(0)), None)

        row = self.total + whole(_HEAD)
        keep = tirx.SeqStmt(
            [
                *(tirx.BufferStore(self.out, v, [row, whole(n)]) for n, v in enumerate((b, c, self.best))),
                self._set(0, 0, self.total + whole(1)),
                self._set(1, 0, self.chosen + whole(1)),
            ]
        )
        return tirx.SeqStmt(
            [
                self._set(0, 2, self._held(whole(0))),
                self._set(0, 1, self.size - whole(1)),
                self._hold(whole(0), self._held(self.size)),
                self._sink(b, c, whole(0)),
                self._set(1, 1, whole(1)),
                loop(self.chosen, clash),
                tirx.IfThenElse(self._get(1, 1) == whole(1), keep, None),
            ]
        )

    def _corners(self, b: tirx.Var, index: tirx.Expr) -> tuple[tirx.Expr, ...]:
        """The least and the largest coordinates of a box: y, x, y, x."""
        found = [self.boxes[b, index, whole(n)] for n in range(4)]
        if self.centred:
            half = tirx.const(2, "float32")
            x, y, width, height = found
            return y - height / half, x - width / half, y + height / half, x + width / half
        low, high = found[:2], found[2:]
        return (*map(tirx.min, low, high), *map(tirx.max, low, high))

    def _overlaps(self, b: tirx.Var, one: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
        """Whether the intersection of two boxes is more than the allowed part of their union."""
        first, second = self._corners(b, one), self._corners(b, other)
        zero = tirx.const(0, "float32")
        sides = [
            tirx.max(tirx.min(first[n + 2], second[n + 2]) - tirx.max(first[n], second[n]), zero) for n in range(2)
        ]
        shared = sides[0] * sides[1]
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
        union = areas[0] + areas[1] - shared
        real = tirx.all(areas[0] > zero, areas[1] > zero, union > zero, shared > zero)
        return tirx.all(real, shared / union > self.overlap)


@sizes("NonMaxSuppression")
def _size(ctx: Context, rows: relax.Expr) -> relax.Expr:
    return vector(ctx, [rows], 2, lambda ins: [ins[0][whole(0), whole(0)], whole(3)])


@results("NonMaxSuppression")
def _selected(ctx: Context, rows: relax.Expr) -> relax.Expr:
    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        return given[0](i[0] + whole(_HEAD), i[1])

    return elements(ctx, [rows], at, "int64", "selected")
