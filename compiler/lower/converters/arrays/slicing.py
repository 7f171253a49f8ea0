"""Slice: of places that are known or follow from sizes, and of places that are data."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax, sym, te, tirx

from heterocc.compiler.lower.converters.arrays.axes import entry_of, is_there, most_entries, on_axis, right_axes
from heterocc.compiler.lower.converters.computed.numbers import LARGEST, elements, results, sizes, vector, whole, within
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import Extent, as_int64, same
from heterocc.compiler.operators.arrays.slices import NO_ENDS

Buffers = Sequence[tirx.Buffer]


@converter("Slice")
def _slice(ctx: Context, data: relax.Expr, *ends: relax.Expr | None) -> relax.Expr:
    """Slice. A request that is larger than the model allows may have an end beyond the data."""
    if not ctx.is_symbolic(0) and not ctx.is_symbolic_data(data):
        return ctx.original(data, *ends)
    if ctx.opset < 10:
        raise NotImplementedError("slices of dimensions without a fixed size need operator set 10")
    starts, axes = ctx.sizes(1), ctx.sizes(3)
    steps = ctx.sizes(4) if len(ends) > 3 and ends[3] is not None else None
    if starts is None or (len(ends) > 2 and ends[2] is not None and axes is None):
        raise NotImplementedError("the start of the slice is computed from data")
    sizes = dims_of(data)
    places = [int(a) for a in axes] if axes is not None else list(range(len(starts)))
    result = ctx.result()
    stride: dict[int, int] = {}
    begin: dict[int, Extent] = {}
    for index, (axis, start) in enumerate(zip(places, starts, strict=True)):
        step = int(steps[index]) if steps is not None else 1
        axis %= len(sizes)
        if step == 1 and same([result[axis]], [sizes[axis]]):
            continue  # all of the axis
        begin[axis] = _from_front(start, sizes[axis])
        if step < 0 and not (isinstance(start, int) and start < 0):
            begin[axis] = tirx.min(as_int64(begin[axis]), as_int64(sizes[axis]) - 1)
        stride[axis] = step

    def compute(given: list[te.Tensor], starts: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        data = given[0]
        first = dict(zip(begin, starts, strict=True))

        def place(axis: int, index: tirx.Var) -> tirx.Expr:
            if axis not in first:
                return index
            size, known = data.shape[axis], sym.Analyzer()
            if isinstance(size, tirx.Var):  # an axis that is read from has an element
                known.bind(size, ir.Range(whole(1), whole(LARGEST)))
            start, step, last = known.simplify(first[axis]), whole(stride[axis]), size - whole(1)
            furthest = start + (shape[axis] - whole(1)) * step if stride[axis] > 0 else start
            read = start + index * step
            return read if known.can_prove(furthest <= last) else tirx.min(read, last)

        return te.compute(shape, lambda *i: data(*map(place, range(len(i)), i)), name="slice")

    return emit_sized(ctx.bb, compute, [data], list(begin.values()), result, dtype_of(data), "slice")


def _from_front(start: Extent, size: Extent) -> Extent:
    """The place that a start means: of one that is negative, such as `-n` rows, that far from the end."""
    if isinstance(start, tirx.Var) or (isinstance(start, int) and start >= 0):
        return start
    place = tirx.max(whole(0), as_int64(size) + as_int64(start))
    return place if isinstance(start, int) else tirx.if_then_else(start < 0, place, as_int64(start))


class _Cut:
    """The parts of a Slice: for each axis its first place, its step and its length, computed from the inputs."""

    def __init__(self, rank: int, given: Sequence[relax.Expr | None]) -> None:
        self.rank = rank
        self.has_axes = len(given) > 2 and given[2] is not None
        self.has_steps = len(given) > 3 and given[3] is not None
        self.tensors = [g for g in given if g is not None]

    def of(self, ins: Sequence[tirx.Buffer | te.Tensor], axis: int) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
        """First place, step and length along an axis; `ins` are the data and the tensors."""
        size = ins[0].shape[axis].astype("int64")
        axes = ins[3] if self.has_axes else None
        first, step, length = whole(0), whole(1), size
        for entry in range(most_entries(ins[1], self.rank)):
            here = tirx.all(is_there(ins[1], entry), on_axis(axes, entry, axis, self.rank))
            by = entry_of(ins[3 + self.has_axes], entry) if self.has_steps else whole(1)
            # A larger step reads one element as well; the sums below do not exceed int64.
            by = tirx.max(tirx.min(tirx.Select(by == whole(0), whole(1), by), whole(LARGEST)), whole(-LARGEST))
            begin, end = (self._place(entry_of(ins[n], entry), size, by, n == 2) for n in (1, 2))
            forward = tirx.floordiv(end - begin + by - whole(1), tirx.max(by, whole(1)))
            backward = tirx.floordiv(begin - end - by - whole(1), tirx.max(-by, whole(1)))
            count = tirx.max(tirx.Select(by > whole(0), forward, backward), whole(0))
            first, step = tirx.Select(here, begin, first), tirx.Select(here, by, step)
            length = tirx.Select(here, count, length)
        return first, step, length

    def check(self, ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        """What the inputs have to meet."""
        count = most_entries(ins[1], self.rank)
        steps = [(n, entry_of(ins[3 + self.has_axes], n)) for n in range(count)] if self.has_steps else []
        moves = [tirx.any(step != whole(0), tirx.Not(is_there(ins[1], n))) for n, step in steps]
        moving = (tirx.all(whole(0) == whole(0), *moves), "a step is 0")
        few = ins[1].shape[0].astype("int64") <= whole(count)
        return [
            (few, f"it has starts of more than {self.rank} dimensions"),
            moving,
            *(right_axes(ins[3], self.rank) if self.has_axes else ()),
        ]

    @staticmethod
    def _place(index: tirx.Expr, size: tirx.Expr, step: tirx.Expr, is_end: bool) -> tirx.Expr:
        index = tirx.Select(index < whole(0), tirx.max(index, -size - whole(1)) + size, index)
        ahead = tirx.max(whole(0), tirx.min(index, size))
        first = whole(-1) if is_end else tirx.min(whole(0), size - whole(1))  # there is none of an empty dimension
        back = tirx.max(first, tirx.min(index, size - whole(1)))
        if is_end:
            back = tirx.Select(tirx.any(*(index == whole(end) for end in NO_ENDS)), whole(-1), back)
        return tirx.Select(step > whole(0), ahead, back)


@sizes("Slice")
def _slice_sizes(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
    rank = rank_of(data)
    cut = _Cut(rank, given)
    return vector(
        ctx, [data, *cut.tensors], rank, lambda ins: [cut.of(ins, axis)[2] for axis in range(rank)], cut.check
    )


@results("Slice")
def _sliced(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
    cut = _Cut(rank_of(data), given)

    def at(tensors: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        places = []
        for axis, v in enumerate(i):
            first, step, _length = cut.of(tensors, axis)
            places.append(within(first + v * step, tensors[0].shape[axis]))
        return tensors[0](*places)

    return elements(ctx, [data, *cut.tensors], at, dtype_of(data), "slice")
