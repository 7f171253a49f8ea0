"""Unique: a stable merge sort of places, whose runs of equal elements are the results.

Elements are numbers, or slices along an axis, which are compared in the order of their elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import (
    elements,
    loop,
    product,
    results,
    sizes,
    table,
    unravelled,
    vector,
    whole,
)
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of

Buffers = Sequence[tirx.Buffer]
_PASSES = 40
"""As many doublings of the length of sorted runs as any tensor needs."""


class _Unique:
    """The places of a Unique: its table has the number of results last, and before it four rows of one each element.

    The rows are the group of each element, the first element of each group, the number of its elements, and scratch
    memory.
    """

    def __init__(self, ctx: Context, data: relax.Expr) -> None:
        rank = rank_of(data)
        self.axis = int(ctx.attrs["axis"]) % rank if "axis" in ctx.attrs else None
        self.is_sorted = bool(ctx.attrs.get("sorted", 1))
        count = whole(1)
        for dim in dims_of(data) if self.axis is None else [dims_of(data)[self.axis]]:
            count = count * (whole(dim) if isinstance(dim, int) else dim)
        self.table = table(ctx, [data], [count * whole(4) + whole(1)], self._write, name="unique")

    def length(self, data: tirx.Buffer) -> tirx.Expr:
        """The number of elements that are compared."""
        return product(data.shape if self.axis is None else [data.shape[self.axis]])

    def _item(self, data: tirx.Buffer, place: tirx.Expr, inner: tirx.Expr) -> tirx.Expr:
        """A number of an element."""
        if self.axis is None:
            return data[tuple(unravelled(place, data.shape))]
        others = [d for n, d in enumerate(data.shape) if n != self.axis]
        index = unravelled(inner, others)
        return data[(*index[: self.axis], place, *index[self.axis :])]

    def _compared(
        self, data: tirx.Buffer, state: tirx.Buffer, left: tirx.Expr, right: tirx.Expr, slot: int
    ) -> tirx.Stmt:
        """Store -1, 0 or 1 in a slot of `state`: whether the left element is before the right one, equal, or behind."""
        size = whole(1) if self.axis is None else product([d for n, d in enumerate(data.shape) if n != self.axis])

        def step(k: tirx.Var) -> tirx.Stmt:
            one, other = self._item(data, left, k), self._item(data, right, k)
            if str(data.dtype) == "bool":
                one, other = one.astype("int8"), other.astype("int8")
            found = tirx.Select(one < other, whole(-1), tirx.Select(other < one, whole(1), whole(0)))
            if str(data.dtype).startswith("float"):  # a NaN is behind all numbers, and equal to no other one
                apart = tirx.Select(tirx.isnan(other.astype("float64")), whole(-1), whole(1))
                found = tirx.Select(tirx.any(*(tirx.isnan(v.astype("float64")) for v in (one, other))), apart, found)
            return tirx.IfThenElse(state[whole(slot)] == whole(0), tirx.BufferStore(state, found, [whole(slot)]), None)

        return tirx.SeqStmt([tirx.BufferStore(state, whole(0), [whole(slot)]), loop(size, step)])

    def _write(self, ins: Buffers, out: tirx.Buffer) -> tirx.Stmt:
        data, count = ins[0], self.length(ins[0])
        state = tirx.decl_buffer((5,), "int64", "state")
        rows = [_Row(out, count * whole(n)) for n in range(4)]
        statements = [
            tirx.AllocBuffer(state),
            loop(count, lambda i: tirx.BufferStore(out, i, [i])),
            loop(whole(_PASSES), lambda p: self._pass(data, state, out, count, whole(1) << p)),
            *self._grouped(data, state, rows, out, count),
        ]
        return tirx.SeqStmt(statements)

    def _pass(
        self, data: tirx.Buffer, state: tirx.Buffer, out: tirx.Buffer, count: tirx.Expr, width: tirx.Expr
    ) -> tirx.Stmt:
        """Merge sorted runs of `width` places in pairs."""
        left, right = state[whole(0)], state[whole(1)]

        def run(r: tirx.Var) -> tirx.Stmt:
            low = r * whole(2) * width
            middle, high = tirx.min(low + width, count), tirx.min(low + whole(2) * width, count)

            def step(t: tirx.Var) -> tirx.Stmt:
                both = tirx.all(left < middle, right < high)
                chosen = tirx.any(left >= middle, tirx.all(right < high, state[whole(2)] > whole(0)))

                def take(slot: int) -> tirx.Stmt:
                    place = state[whole(slot)]
                    moved = tirx.BufferStore(out, out[place], [count + low + t])
                    return tirx.SeqStmt([moved, tirx.BufferStore(state, place + whole(1), [whole(slot)])])

                compare = self._compared(data, state, out[left], out[right], 2)
                return tirx.SeqStmt([tirx.IfThenElse(both, compare, None), tirx.IfThenElse(chosen, take(1), take(0))])

            return tirx.SeqStmt(
                [
                    tirx.BufferStore(state, low, [whole(0)]),
                    tirx.BufferStore(state, middle, [whole(1)]),
                    loop(high - low, step),
                ]
            )

        runs = tirx.floordiv(count + whole(2) * width - whole(1), whole(2) * width)
        copied = loop(count, lambda i: tirx.BufferStore(out, out[count + i], [i]))
        return tirx.IfThenElse(width < count, tirx.SeqStmt([loop(runs, run), copied]), None)

    def _grouped(
        self, data: tirx.Buffer, state: tirx.Buffer, rows: list[_Row], out: tirx.Buffer, count: tirx.Expr
    ) -> list[tirx.Stmt]:
        """Fill the rows from the sorted places, which are in the first one, and the number of groups."""
        groups, firsts, counts, order = rows
        number = state[whole(3)]

        def group(t: tirx.Var) -> tirx.Stmt:
            """The first element of its group for each element, and the number of elements at that one."""
            place = order.at(t)
            compare = self._compared(data, state, order.at(tirx.max(t - whole(1), whole(0))), place, 2)
            begins = tirx.any(t == whole(0), state[whole(2)] != whole(0))
            first = state[whole(4)]
            begun = tirx.SeqStmt([tirx.BufferStore(state, place, [whole(4)]), counts.store(place, whole(0))])
            return tirx.SeqStmt(
                [
                    compare,
                    tirx.IfThenElse(begins, begun, None),
                    groups.store(place, first),
                    counts.store(first, counts.at(first) + whole(1)),
                ]
            )

        def numbered(t: tirx.Var) -> tirx.Stmt:
            """Numbers of the groups: in the order of their values, or of their first elements."""
            place = order.at(t) if self.is_sorted else t
            begun = [firsts.store(number, place), tirx.BufferStore(state, number + whole(1), [whole(3)])]
            return tirx.IfThenElse(groups.at(place) == place, tirx.SeqStmt(begun), None)

        return [
            loop(count, lambda i: order.store(i, out[i])),
            loop(count, group),
            tirx.BufferStore(state, whole(0), [whole(3)]),
            loop(count, numbered),
            # The order is not needed any more: its row gets the counts of the groups, and then their numbers.
            loop(number, lambda g: order.store(g, counts.at(firsts.at(g)))),
            loop(number, lambda g: counts.store(firsts.at(g), g)),
            loop(count, lambda i: groups.store(i, counts.at(groups.at(i)))),
            loop(number, lambda g: counts.store(g, order.at(g))),
            tirx.BufferStore(out, number, [count * whole(4)]),
        ]


class _Row:
    """A row of the table, from a place on."""

    def __init__(self, out: tirx.Buffer, start: tirx.Expr) -> None:
        self.out, self.start = out, start

    def at(self, index: tirx.Expr) -> tirx.Expr:
        return self.out[self.start + index]

    def store(self, index: tirx.Expr, value: tirx.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.out, value, [self.start + index])


@sizes("Unique")
def _sizes(ctx: Context, data: relax.Expr) -> list[relax.Expr]:
    found = _Unique(ctx, data)

    def count(ins: Buffers) -> tirx.Expr:
        return ins[0][found.length(ins[1]) * whole(4)]

    def values(ins: Buffers) -> list[tirx.Expr]:
        if found.axis is None:
            return [count(ins)]
        return [count(ins) if n == found.axis else d.astype("int64") for n, d in enumerate(ins[1].shape)]

    tensors = [found.table, data]
    one = vector(ctx, tensors, 1, lambda ins: [count(ins)])
    every = vector(ctx, tensors, 1, lambda ins: [found.length(ins[1])])
    return [vector(ctx, tensors, 1 if found.axis is None else rank_of(data), values), one, every, one]


@results("Unique")
def _results(ctx: Context, data: relax.Expr) -> list[relax.Expr]:
    found = _Unique(ctx, data)
    tensors = [found.table, data]

    def row(number: int) -> Callable[..., tirx.Expr]:
        def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
            return given[0](i[0] + found.length(given[1]) * whole(number))

        return at

    def value(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        axis = found.axis
        place = given[0](i[axis or 0] + found.length(given[1]))
        if axis is None:
            return given[1](*unravelled(place, given[1].shape))
        return given[1](*i[:axis], place, *i[axis + 1 :])

    made: list[relax.Expr] = []
    for output, name in enumerate(ctx.node.output):
        if not name:
            made.append(made[0] if made else data)
        elif output == 0:
            made.append(elements(ctx, tensors, value, dtype_of(data), "unique"))
        else:
            made.append(elements(ctx, tensors, row((1, 0, 2)[output - 1]), "int64", "unique", output))
    return made
