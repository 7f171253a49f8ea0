"""Axes that are data of an operator: lists that the code checks and reads."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import whole
from heterocc.compiler.lower.converters.values import dims_of


def count_of(value: relax.Expr, what: str = "the number of axes") -> int:
    """The number of elements of a vector. Raises NotImplementedError if it is known only at run time."""
    size = dims_of(value)[0]
    if not isinstance(size, int):
        raise NotImplementedError(f"{what} depends on data")
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


def on_axis(axes: tirx.Buffer | te.Tensor | None, entry: int, axis: int, rank: int) -> tirx.Expr:
    """Whether an entry of a list of axes, all of them if it is absent, is this axis."""
    if axes is None:
        return whole(entry) == whole(axis)
    found = entry_of(axes, entry)
    return tirx.any(found == whole(axis), found == whole(axis - rank))


def left_sizes(dims: Sequence[tirx.Expr], gone: Sequence[tirx.Expr], count: int) -> list[tirx.Expr]:
    """The sizes of the axes, `count` in number, that are not left out."""
    found = []
    for place in range(count):
        size, before = whole(1), whole(0)
        for left_out, dim in zip(gone, dims, strict=True):
            here = tirx.all(tirx.Not(left_out), before == whole(place))
            size = tirx.Select(here, dim.astype("int64"), size)
            before = before + tirx.Select(left_out, whole(0), whole(1))
        found.append(size)
    return found
