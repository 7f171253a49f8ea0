"""The choice of a plan by times at several sizes, and of the sizes for which it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isqrt, pow, prod

from heterocc.artifacts.manifest import Range

MARGIN = 0.95
"""The time of a plan, relative to the first one's, below which it counts as faster; less may be noise."""

SPLIT = 1.04
"""How many times faster two plans for different sizes have to be, by the mean of the sizes, than one for all: a second
plan takes space in the bundle, and time when it is loaded."""

Times = Mapping[str, tuple[float, ...]]
"""The seconds of plans at several sizes, smallest first."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A plan that is kept for some of the timed sizes, from number `start` to `stop` (excluded), of `count`."""

    name: str
    start: int
    stop: int
    count: int

    @property
    def is_whole(self) -> bool:
        """Whether it is kept for all sizes."""
        return self.stop - self.start == self.count


def mean(times: Sequence[float]) -> float:
    """The geometric mean: a size counts as much as another, however long its runs take."""
    return prod(pow(time, 1 / len(times)) for time in times)


def fastest(times: Times, first: str) -> Kept:
    """The fastest plan, for all sizes; the first without times."""
    name = min(times, key=lambda n: mean(times[n]), default=first)
    count = len(times.get(name, ()))
    return Kept(name, 0, count, count)


def best(times: Times, first: str, rest: str | None) -> Kept:
    """The choice that costs least: a plan for all sizes, or a plan for some beside the plan `rest` for the others.

    `first` is the plan that is preferred, and `rest` is None if only one plan is possible.
    """
    judged = {name: tuple(map(_judged, each, times.get(first, each))) for name, each in times.items()}
    choices = sorted(_choices(judged, rest), key=lambda kept: kept.name != first)
    return min(choices, key=lambda kept: _cost(kept, judged, rest), default=Kept(first, 0, 0, 0))


def _judged(time: float, of_first: float) -> float:
    """A plan's time, or that of the first plan if they hardly differ."""
    return of_first if MARGIN * of_first <= time <= of_first / MARGIN else time


def _choices(times: Times, rest: str | None) -> Iterator[Kept]:
    for name, each in times.items():
        count = len(each)
        yield Kept(name, 0, count, count)
        if rest in times and name != rest:
            parts = ((start, stop) for start in range(count) for stop in range(start + 1, count + 1))
            yield from (Kept(name, start, stop, count) for start, stop in parts if stop - start < count)


def _cost(kept: Kept, times: Times, rest: str | None) -> float:
    own = times[kept.name]
    if kept.is_whole:
        return mean(own)
    inside, others = range(kept.start, kept.stop), times[rest or ""]
    return mean([own[number] if number in inside else others[number] for number in range(kept.count)]) * SPLIT


def bounds_of(kept: Kept, sizes: Sequence[Mapping[str, int]]) -> tuple[dict[str, Range], str]:
    """The sizes of dimensions for which a plan is kept, and this as text: `for n up to 32`; nothing if it is for all.

    `sizes` are those at which plans were timed. Between two of these the geometric mean is the limit.
    """
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    if kept.start > 0:
        low = {dim: size + 1 for dim, size in _between(*sizes[kept.start - 1 : kept.start + 1])}
    if kept.stop < kept.count:
        high = dict(_between(*sizes[kept.stop - 1 : kept.stop + 1]))
    bounds = {dim: Range(min=low.get(dim, 0), max=high.get(dim)) for dim in {**low, **high}}
    return bounds, f"for {', '.join(f'{dim} {_text(found)}' for dim, found in bounds.items())}" if bounds else ""


def _between(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The limit of each dimension between two of its sizes."""
    for dim, size in before.items():
        if size < after.get(dim, -inf):
            yield dim, isqrt(size * after[dim])


def _text(found: Range) -> str:
    if found.max is None:
        return f"from {found.min}"
    return f"up to {found.max}" if found.min == 0 else str(found)
