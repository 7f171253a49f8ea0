"""Operators that get places in their data as data: Slice, Pad, Split, Squeeze, Unsqueeze."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import (
    LARGEST,
    element,
    elements,
    results,
    sizes,
    vector,
    whole,
    within,
)
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import cropped_place, dims_of, dtype_of, rank_of
from heterocc.compiler.operators.arrays.slices import NO_ENDS

op = relax.op
Buffers = Sequence[tirx.Buffer]


def _entries(value: relax.Expr) -> int:
    size = dims_of(value)[0]
    if not isinstance(size, int):
        raise NotImplementedError("the number of axes depends on data")
    return size


def most_entries(entries: tirx.Buffer | te.Tensor, rank: int) -> int:
    """The number of entries of a list of axes, at most `rank` if only the run knows it."""
    size = entries.shape[0]
    return int(size) if isinstance(size, tirx.IntImm) else rank


def is_there(entries: tirx.Buffer | te.Tensor, entry: int) -> tirx.Expr:
    """Whether a list has this entry."""
    return whole(entry) < entries.shape[0].astype("int64")


def entry_of(entries: tirx.Buffer | te.Tensor, entry: int) -> tirx.Expr:
    """An entry of a list as int64; 0 if it has fewer."""
    found = entries[(whole(entry),)].astype("int64")
    if isinstance(entries.shape[0], tirx.IntImm):
        return found
    return tirx.if_then_else(is_there(entries, entry), found, whole(0))


def right_axes(axes: tirx.Buffer, rank: int, *, distinct: bool = True) -> list[tuple[tirx.Expr, str]]:
    """The conditions that a list of computed axes has to meet, each with what is wrong if not."""
    count = most_entries(axes, rank)
    found = [entry_of(axes, entry) for entry in range(count)]
    inside = [tirx.all(axis >= whole(-rank), axis < whole(rank)) for axis in found]
    counted = [tirx.Select(axis < whole(0), axis + whole(rank), axis) for axis in found]
    pairs = [(n, one, other) for n, one in enumerate(counted) for other in counted[:n]] if distinct else []
    differ = [tirx.any(one != other, tirx.Not(is_there(axes, n))) for n, one, other in pairs]
    true = whole(0) == whole(0)
    few = axes.shape[0].astype("int64") <= whole(count)
    return [
        (few, f"there are more axes than {rank} dimensions"),
        (tirx.all(true, *inside), f"an axis is out of range for {rank} dimensions"),
        (tirx.all(true, *differ), "an axis is named twice"),
    ]


def _on_axis(axes: tirx.Buffer | te.Tensor | None, entry: int, axis: int, rank: int) -> tirx.Expr:
    """Whether an entry of a list of axes, all of them if it is absent, is this axis."""
    if axes is None:
        return whole(entry) == whole(axis)
    found = entry_of(axes, entry)
    return tirx.any(found == whole(axis), found == whole(axis - rank))


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
            here = tirx.all(is_there(ins[1], entry), _on_axis(axes, entry, axis, self.rank))
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
        back = tirx.max(whole(-1 if is_end else 0), tirx.min(index, size - whole(1)))
        if is_end:
            back = tirx.Select(tirx.any(*(index == whole(end) for end in NO_ENDS)), whole(-1), back)
        return tirx.Select(step > whole(0), ahead, back)


@sizes("Slice")
def _slice(ctx: Context, data: relax.Expr, *given: relax.Expr | None) -> relax.Expr:
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


def _pads(ins: Sequence[tirx.Buffer | te.Tensor], has_axes: bool, count: int, axis: int) -> list[tirx.Expr]:
    """The padding before and after an axis."""
    rank = len(ins[0].shape)
    found = [whole(0), whole(0)]
    for entry in range(count):
        here = _on_axis(ins[2] if has_axes else None, entry, axis, rank)
        for side in (0, 1):
            number = ins[1][(whole(entry + side * count),)].astype("int64")
            found[side] = tirx.Select(here, number, found[side])
    return found


@sizes("Pad")
def _pad(ctx: Context, data: relax.Expr, pads: relax.Expr, _value: object = None, axes: object = None) -> relax.Expr:
    rank, count = rank_of(data), _entries(pads) // 2
    tensors = [data, pads, *([] if axes is None else [axes])]

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        found = []
        for axis in range(rank):
            before, after = _pads(ins, axes is not None, count, axis)
            found.append(ins[0].shape[axis].astype("int64") + before + after)
        return found

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        numbers = [element(ins[1], entry) for entry in range(2 * count)]
        inside = [tirx.all(n <= whole(LARGEST), n >= whole(-LARGEST)) for n in numbers]
        limited = (tirx.all(whole(0) == whole(0), *inside), f"a padding exceeds {LARGEST} elements, the limit")
        return [limited, *(() if axes is None else right_axes(ins[2], rank)), *enough(ins)]

    def enough(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        """What is changed has an element left, and one more than a reflection repeats."""
        if mode == "constant":
            return []
        right = []
        for axis in range(rank):
            before, after = _pads(ins, axes is not None, count, axis)
            cut = tirx.min(before, whole(0)) + tirx.min(after, whole(0))
            added = tirx.max(tirx.max(before, after), whole(0))
            changed = tirx.Select(tirx.any(added > whole(0), cut < whole(0)), whole(1), whole(0))
            least = changed + (added if mode == "reflect" else whole(0))
            right.append(ins[0].shape[axis].astype("int64") + cut >= least)
        return [(tirx.all(whole(0) == whole(0), *right), "a dimension is too small for its padding")]

    mode = ctx.text("mode", "constant")
    return vector(ctx, tensors, rank, numbers, check)


@results("Pad")
def _padded(
    ctx: Context,
    data: relax.Expr,
    pads: relax.Expr,
    value: relax.Expr | None = None,
    axes: relax.Expr | None = None,
) -> relax.Expr:
    mode, count = ctx.text("mode", "constant"), _entries(pads) // 2
    tensors = [data, pads, *([] if axes is None else [axes]), *([] if value is None else [value])]
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise NotImplementedError(f"mode {mode} is not supported")

    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        places, inside = [], []
        for axis, v in enumerate(i):
            size = given[0].shape[axis].astype("int64")
            before, after = _pads(given, axes is not None, count, axis)
            place, is_inside = cropped_place(v, size, before, after, mode)
            inside.append(is_inside)
            places.append(place)
        found = given[0](*places)
        if mode != "constant":
            return found
        last = given[-1]
        fill = tirx.const(0, dtype_of(data)) if value is None else last(*[whole(0)] * len(last.shape))
        return tirx.if_then_else(tirx.all(*inside), found, fill)

    return elements(ctx, tensors, at, dtype_of(data), "pad")


@results("Split")
def _parts(ctx: Context, data: relax.Expr, parts: relax.Expr) -> list[relax.Expr]:
    axis = ctx.attrs.get("axis", 0) % rank_of(data)

    def one(part: int) -> relax.Expr:
        def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
            start = whole(0)
            for earlier in range(part):
                start = start + element(given[1], earlier)
            place = within(start + i[axis], given[0].shape[axis])
            return given[0](*i[:axis], place, *i[axis + 1 :])

        return elements(ctx, [data, parts], at, dtype_of(data), "split", part)

    return [one(part) for part in range(ctx.outputs)]


@sizes("Unsqueeze")
def _unsqueeze(ctx: Context, data: relax.Expr, axes: relax.Expr) -> relax.Expr:
    rank = rank_of(data) + _entries(axes)

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        added = [_any_entry(ins[1], axis, rank) for axis in range(rank)]
        return _dealt(added, [d.astype("int64") for d in ins[0].shape])

    return vector(ctx, [data, axes], rank, numbers, lambda ins: right_axes(ins[1], rank))


@sizes("Squeeze")
def _squeeze(ctx: Context, data: relax.Expr, axes: relax.Expr) -> relax.Expr:
    rank = rank_of(data)

    def gone(ins: Buffers) -> list[tirx.Expr]:
        return [_any_entry(ins[1], axis, rank) for axis in range(rank)]

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        found = []
        for place in range(rank - _entries(axes)):
            size, before = whole(1), whole(0)
            for left_out, d in zip(gone(ins), ins[0].shape, strict=True):
                here = tirx.all(tirx.Not(left_out), before == whole(place))
                size = tirx.Select(here, d.astype("int64"), size)
                before = before + tirx.Select(left_out, whole(0), whole(1))
            found.append(size)
        return found

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        total, left = whole(1), whole(1)
        for d in ins[0].shape:
            total = total * d.astype("int64")
        for size in numbers(ins):
            left = left * size
        text = "an axis that is removed has more than one element"
        return [*right_axes(ins[1], rank), (total == left, text)]

    return vector(ctx, [data, axes], rank - _entries(axes), numbers, check)


def _any_entry(axes: tirx.Buffer, axis: int, rank: int) -> tirx.Expr:
    return tirx.any(*(_on_axis(axes, entry, axis, rank) for entry in range(int(axes.shape[0]))))


def _dealt(added: list[tirx.Expr], dims: list[tirx.Expr]) -> list[tirx.Expr]:
    """1 for each added axis, and the dimensions in order for the others."""
    found, used = [], whole(0)
    for one in added:
        size = whole(1)
        for place, dim in enumerate(dims):
            size = tirx.Select(used == whole(place), dim, size)
        found.append(tirx.Select(one, whole(1), size))
        used = used + tirx.Select(one, whole(0), whole(1))
    return found
