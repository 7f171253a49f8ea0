"""Slices."""

from __future__ import annotations

from collections.abc import Sequence

from heterocc.compiler.operators.record import FIRST, Operator
from heterocc.compiler.symbolic.comparisons import is_positive_dimension
from heterocc.compiler.symbolic.given import Contents, Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, larger, number, smaller

FAR = 10**9
"""Ends of slices from here on mean the end of the dimension; exporters write this, or the largest int32 or int64."""

_END = 2**63 - 1

NO_ENDS = (2**31 - 1, 2**63 - 1)
"""Ends with which ONNX Runtime slices to the last element of the direction: the first one, if the step is negative."""


def slice_bounds(given: Given, size: Size, start: Size, end: Size, step: int) -> tuple[Size, Size] | None:
    """First and last place, the latter excluded, of a slice with a positive step in a dimension of `size`.

    The last one is inside the dimension; the first one may be behind the last, for an empty slice.

    None if it is not known whether an end counts from the back, or for a negative step. A slice of a table of fixed
    size is taken to end inside it, which becomes one of the limits.
    """
    ahead = start.least is not None and start.least >= 0
    to_end = end.number is not None and end.number >= FAR
    first = start if ahead and (start.number or 0) < FAR else _place(given, size, start, filled=to_end)
    last = _place(given, size, end, filled=True)
    return None if step < 1 or first is None or last is None else (first, last)


def _place(given: Given, size: Size, index: Size, *, filled: bool) -> Size | None:
    """The place in a dimension that an index means; `filled` if a slice of one with no elements may be refused."""
    if index.number is not None and index.number >= FAR:
        return size
    if index.number is not None and index.number <= -FAR:
        return number(0)
    if (index.least is not None and index.least >= 0) or (not _is_back(index) and given.assume_positive(index)):
        if size.number is not None and index.names:
            given.limit(index, size.number)
            return index
        return index if given.is_positive(size - index) else smaller(index, size)
    if filled and index.number == -1 and is_positive_dimension(size):
        return size + index
    return larger(size + index, number(0)) if _is_back(index) else None


def _is_back(index: Size) -> bool:
    """Whether an index counts from the end for all sizes."""
    back = (-index).least
    return back is not None and back > 0


def slice_axes(given: Given) -> list[tuple[int, Size, Size, int]] | None:
    """Axis, start, end and step of each part of a Slice; None if they are not known."""
    shape = given.shape()
    if shape is None:
        return None
    if given.opset < 10:
        starts, ends = ([number(int(n)) for n in given.attribute(k)] for k in ("starts", "ends"))
        axes, steps = given.attribute("axes"), None
        axes = list(range(len(starts))) if axes is None else [int(a) for a in axes]
    else:
        first, last = given.sizes(1), given.sizes(2)
        if first is None or last is None:
            return None
        starts, ends = first, last
        axes = given.numbers(3) if given.has(3) else list(range(len(starts)))
        steps = given.numbers(4) if given.has(4) else None
        if axes is None or (given.has(4) and steps is None):
            return None
    steps = [1] * len(starts) if steps is None else steps
    return [(a % len(shape), s, e, k) for a, s, e, k in zip(axes, starts, ends, steps, strict=True)]


def _needs(needs: Needs) -> None:
    """An end, an axis and a step for each start, and dimensions with the elements that the result is taken to have.

    The last element is taken to be one in each run: of an empty dimension it would be other memory.
    """
    for axis, size in enumerate(needs.result or ()):
        needs.at_least(0, axis, None if size is None else size.number)
    if needs.given.opset >= 10:
        for place in (2, 3, 4):
            needs.equal(place, 0, needs.size(1, 0))


def slice_shapes(given: Given) -> list[Shape] | None:
    """The shape of a Slice; its axes are unknown where their ends are."""
    shape, parts = given.first, slice_axes(given)
    dims = list(shape)
    if parts is None:
        cut = given.numbers(3) if given.has(3) else None
        for axis in cut or ():
            dims[axis] = None
        return None if cut is None else [tuple(dims)]
    for axis, start, end, step in parts:
        size = dims[axis]
        dims[axis] = None
        if size is not None and step < 0:
            dims[axis] = _backwards(size, start, end, -step)
            continue
        bounds = slice_bounds(given, size, start, end, step) if size is not None else None
        if bounds is not None and (end.least is None or end.least < 0) and not _is_back(end):
            given.assume_positive(bounds[1] - bounds[0] - number(1))  # as its end is assumed not to be negative
        if bounds is not None:
            count = quotient(bounds[1] - bounds[0] + number(step - 1), number(step))
            # A window of a table whose start follows from sizes, such as that of relative positions, is not empty.
            window = size is not None and size.number is not None and bool(bounds[0].names) and count is not None
            whole = bounds[0].number == 0 or (count is not None and given.is_positive(count))
            whole = whole or (window and count is not None and given.assume_positive(count))
            dims[axis] = count if count is None or whole else larger(count, number(0))
    return [tuple(dims)]


def _backwards(size: Size, start: Size, end: Size, step: int) -> Size | None:
    """The length of a slice that runs backwards to the first element; None for other ends."""
    if end.number is None or end.number > -FAR or start.number is None:
        return None
    if start.number >= 0:
        length = size if start.number >= FAR else smaller(start + number(1), size)
    elif start.number == -1:
        length = size
    else:  # ONNX has a start before the first element be the first one, unlike Python
        length = larger(size + start + number(1), smaller(size, number(1)))
    return quotient(length + number(step - 1), number(step))


def _slice_contents(given: Given) -> Contents | None:
    data, parts = given.contents[0], slice_axes(given)
    if data is None or parts is None:
        return None
    index: list[slice] = [slice(None)] * data.ndim
    for axis, start, end, step in parts:
        if start.number is None or end.number is None:
            return None
        # The end of a slice that runs backwards to the first element is below every index.
        size = data.shape[axis]
        beyond = step < 0 and end.number < -size
        first = max(start.number, -size) if step < 0 and size else start.number
        index[axis] = slice(first, None if beyond else end.number, step)
    return data[tuple(index)]


def _settled_slice(given: Given, _result: Sequence[Size | None]) -> dict[int, list[int]]:
    shape, parts = given.shape(), slice_axes(given) if given.opset >= 10 else None
    if shape is None or parts is None:
        return {}
    found: dict[int, list[int]] = {}
    for index in (1, 2):
        numbers = [_from_back(shape[axis], (start, end)[index - 1]) for axis, start, end, _ in parts]
        if all(n is not None for n in numbers):
            found[index] = [n for n in numbers if n is not None]
    return found


def _from_back(size: Size | None, index: Size) -> int | None:
    if index.number is not None or size is None:
        return index.number
    back = (size - index).number
    return None if back is None or back < 0 else -back if back else _END


OPERATORS = (
    Operator(
        "Slice",
        settled=_settled_slice,
        length="first",
        listed=True,
        shapes=slice_shapes,
        contents=_slice_contents,
        needs=_needs,
        unchecked="shape",
        moves=FIRST,
        axes=3,
        settings=True,
    ),
)
