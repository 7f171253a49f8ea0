"""Requests that do not fit, made from one that does: other sizes, and values out of range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]

HUGE = 1 << 17
"""Elements of an input that has a huge size: more than any page beside it, and less than a run's memory."""

INTEGERS = (
    -1,
    0,
    1,
    2,
    3,
    7,
    -2,
    -7,
    1 << 20,
    1 << 31,
    -(1 << 31),
    (1 << 31) - 1,
    1 << 33,
    1 << 62,
    -(1 << 63),
    (1 << 63) - 1,
)
FLOATS = (np.nan, np.inf, -np.inf, -1.0, 0.0, -0.0, 0.5, 1e30, -1e30, 1e9, 3.0)


@dataclass(frozen=True, slots=True)
class Request:
    """A feed, and what makes it differ from the valid one."""

    feed: Feed
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Valid:
    """A request that fits its model, from which others are made.

    `free` tells of each axis of each input whether its size is symbolic. With `shared` equal sizes have one name.
    """

    model: str
    feed: Mapping[str, Array]
    free: Mapping[str, tuple[bool, ...]]
    shared: bool
    seed: int = 0


def request(valid: Valid, number: int) -> Request:
    """Request `number` made from a valid one, the same each time; 0 is the valid one."""
    kinds: list[str] = []
    what: list[str] = []
    feed = dict(valid.feed)
    if number == 0:
        return Request(feed, "valid", "the valid request")
    rng = np.random.default_rng([valid.seed, number, *valid.model.encode()])
    weights = _SHARED if valid.shared else _WEIGHTS
    names, shares = list(weights), np.array(list(weights.values()))
    while len(what) < 2:
        kind = str(rng.choice(names, p=shares / shares.sum()))
        changed = dict(feed)
        change = _KINDS[kind](changed, valid, rng)
        if change and sum(array.size for array in changed.values()) <= 2 * HUGE:
            feed = changed
            kinds.append(kind)
            what.append(change)
        if rng.random() < 0.7:
            break
    return Request(feed, "+".join(sorted(set(kinds))) or "valid", "; ".join(what) or "the valid request")


def _other_size(rng: np.random.Generator, size: int, rest: int) -> int:
    """Another size for an axis; `rest` is the number of elements for each place of it."""
    huge = max(1, HUGE // max(1, rest))
    choices = [size + 1, size - 1, 0, 1, 2 * size, 2, 3, size + 7, 64, huge]
    found = [s for s in choices if s >= 0 and s != size]
    return int(found[rng.integers(len(found))])


def _resized(array: Array, shape: tuple[int, ...]) -> Array:
    """An array of another shape, with values from the first one, which are in the operator's range."""
    if array.size == 0:
        return np.zeros(shape, array.dtype)
    return np.resize(array, shape)


def _one_size(feed: Feed, valid: Valid, rng: np.random.Generator) -> str:
    places = [
        (name, axis)
        for name, free in valid.free.items()
        for axis in range(min(len(free), feed[name].ndim))
        if free[axis]
    ]
    if not places:
        return ""
    name, axis = places[rng.integers(len(places))]
    before = feed[name].shape
    shape = list(before)
    shape[axis] = _other_size(rng, shape[axis], int(np.prod([s for i, s in enumerate(shape) if i != axis])))
    feed[name] = _resized(feed[name], tuple(shape))
    return f"{name}: {list(before)} -> {shape}"


def _common_size(feed: Feed, valid: Valid, rng: np.random.Generator) -> str:
    """Another size on every symbolic axis that has it: often a request that fits."""
    free = {
        name: tuple(s for s, f in zip(feed[name].shape, axes, strict=False) if f) for name, axes in valid.free.items()
    }
    sizes = sorted({size for axes in free.values() for size in axes})
    if not sizes:
        return ""
    size = int(rng.choice(sizes))
    rest = max(int(feed[name].size) // max(1, size) for name, axes in free.items() if size in axes)
    new = _other_size(rng, size, rest)
    if new ** max(axes.count(size) for axes in free.values()) > HUGE:
        new = size + 3
    shapes = {}
    for name, axes in valid.free.items():
        shape = feed[name].shape
        if size in free[name]:
            symbolic = (*axes, *[False] * len(shape))
            shapes[name] = tuple(new if symbolic[axis] and s == size else s for axis, s in enumerate(shape))
    if max(map(math.prod, shapes.values())) > 2 * HUGE:  # an earlier change of the request made the size huge
        return ""
    for name, changed in shapes.items():
        feed[name] = _resized(feed[name], changed)
    return f"every {size} -> {new}"


def _swapped(feed: Feed, valid: Valid, rng: np.random.Generator) -> str:
    names = [name for name, array in feed.items() if array.ndim > 1 and len(set(array.shape)) > 1]
    if not names:
        return ""
    name = str(rng.choice(names))
    one, other = rng.choice(feed[name].ndim, 2, replace=False)
    feed[name] = np.ascontiguousarray(np.swapaxes(feed[name], one, other))
    return f"{name}: axes {one} and {other} swapped: {list(feed[name].shape)}"


def _exchanged(feed: Feed, valid: Valid, rng: np.random.Generator) -> str:
    """The sizes of two inputs of one rank exchanged."""
    shapes = {name: array.shape for name, array in feed.items()}
    pairs = [
        (a, b) for a in feed for b in feed if a < b and len(shapes[a]) == len(shapes[b]) and shapes[a] != shapes[b]
    ]
    if not pairs:
        return ""
    one, other = pairs[rng.integers(len(pairs))]
    feed[one], feed[other] = _resized(feed[one], shapes[other]), _resized(feed[other], shapes[one])
    return f"sizes of {one} and {other} exchanged: {list(shapes[other])}, {list(shapes[one])}"


def _rank(feed: Feed, valid: Valid, rng: np.random.Generator) -> str:
    name = str(rng.choice(list(feed)))
    array = feed[name]
    feed[name] = array[None] if array.ndim == 0 or rng.random() < 0.5 else _resized(array, array.shape[1:])
    return f"{name}: {list(array.shape)} -> {list(feed[name].shape)}"


def _value(feed: Feed, valid: Valid, rng: np.random.Generator) -> str:
    """One element, or all, of an input out of its usual range; integers near the sizes of all inputs, too."""
    names = [name for name, array in feed.items() if array.size and array.dtype.kind in "iufb"]
    if not names:
        return ""
    whole = [name for name in names if feed[name].dtype.kind in "iu"]
    name = str(rng.choice(whole if whole and rng.random() < 0.7 else names))
    array = feed[name].copy()
    if array.dtype.kind == "b":
        new: Any = bool(rng.integers(2))
    elif array.dtype.kind == "f":
        new = FLOATS[rng.integers(len(FLOATS))]
    else:
        sizes = sorted({size for other in feed.values() for size in other.shape})
        near = [value for size in sizes for value in (size - 1, size, size + 1, -size, -size - 1)]
        limits = np.iinfo(array.dtype)
        usable = [v for v in (*INTEGERS, *near, limits.min, limits.max) if limits.min <= v <= limits.max]
        new = usable[rng.integers(len(usable))]
    place = "all" if rng.random() < 0.3 else int(rng.integers(array.size))
    with np.errstate(over="ignore"):
        if place == "all":
            array[...] = new
        else:
            array.reshape(-1)[place] = new
    feed[name] = array
    return f"{name}[{place}] = {new}"


_KINDS: Mapping[str, Callable[[Feed, Valid, np.random.Generator], str]] = {
    "size": _one_size,
    "common size": _common_size,
    "swapped": _swapped,
    "exchanged": _exchanged,
    "rank": _rank,
    "value": _value,
}
_SHARED: Mapping[str, float] = {"common size": 2.0, "value": 2.0}
_WEIGHTS: Mapping[str, float] = {
    "size": 4.0,
    "common size": 1.5,
    "swapped": 0.7,
    "exchanged": 0.5,
    "rank": 0.15,
    "value": 3.0,
}
