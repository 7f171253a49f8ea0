"""The sizes at which plans of models with dynamic sizes are timed: the drawn ones, smaller and larger ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np

from heterocc.artifacts.errors import InputError
from heterocc.artifacts.manifest import Range
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.importer.estimates.runs import Work, work_of
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.sizes.planned import first_and_seen_sizes
from heterocc.compiler.sizes.requests import with_samples_in_bounds

LITTLE_WORK = Work(1e9, 1 << 25)
"""The work of a run at larger sizes that takes little time, some 20 ms, however long one at the drawn sizes takes."""

MOST_BYTES = 1 << 27
"""The most bytes of values of a run at larger sizes."""

TIMES = (512, 64, 16, 4)
"""How many times the drawn elements the larger inputs have, the first with which the model runs: a signal has 80,000
samples where 128 are drawn, and a text model of 512 positions takes 4 times 128."""

LEAST_TIMES = 2
"""How many times as long as at the drawn sizes a run has to be allowed to take for larger sizes to be looked for."""

PARTS = (16, 4)
"""How many times fewer elements than the drawn inputs the smaller ones have, the first with which the model runs: a
sentence has 8 words where 128 are drawn."""

CLOSE = 16
"""How many times as large sizes may be as the drawn ones without others between: the limit of a plan is between two."""

_SHOWN = 8
"""The dimensions whose sizes a note has, at most."""

Feed = Mapping[str, Any]


def smaller_feeds(model: ImportedModel, feed: Feed, bounds: Mapping[str, Range], seed: int) -> Iterator[dict[str, Any]]:
    """Smaller inputs than those of a feed by internal name, smallest first, with which the model may not run.

    Which dimensions change, and `bounds`, are as for `larger_feeds`.
    """
    model = _sampled(model, feed)
    if model.symbols is None or not model.samples:
        return
    changed, seen = _changed_and_seen(model)
    sides = _sides(model, changed)
    tried = [{n: max(1, s // sides(parts)) if n in changed else s for n, s in seen.items()} for parts in PARTS]
    for found in _models(model, tried, bounds):
        yield from _drawn(found, seed)


def larger_feeds(
    model: ImportedModel, feed: Feed, bounds: Mapping[str, Range], seed: int, longer: float
) -> Iterator[dict[str, Any]]:
    """Larger inputs than those of a feed by internal name, largest first, with which the model may not run.

    A run takes at most `longer` times that of the feed, as far as its operations tell, or little time. Dimensions that
    are the first of an input, usually a batch, stay as they are, unless there are no others. `bounds` are those of
    named dimensions. There are none if the inputs of the feed tell enough.
    """
    model = _sampled(model, feed)
    if model.symbols is None or not model.samples:
        return
    flops = _work(model).flops
    if longer < LEAST_TIMES and flops * LEAST_TIMES > LITTLE_WORK.flops:
        return
    changed, seen = _changed_and_seen(model)
    sides = _sides(model, changed)
    tried = [{n: s * sides(times) if n in changed else s for n, s in seen.items()} for times in TIMES]
    for found in _models(model, tried, bounds):
        work = _work(found)
        if work.within(LITTLE_WORK) or work.within(Work(flops * longer, MOST_BYTES)):
            yield from _drawn(found, seed)


def feeds_between(model: ImportedModel, feed: Feed, seed: int, larger: Feed) -> Iterator[dict[str, Any]]:
    """Inputs of sizes in the middle of those of two feeds, the first one smaller; none if these are close."""
    model, most = _sampled(model, feed), sizes_of(model, larger)
    sizes = sizes_of(model, feed)
    if any(most.get(dim, 0) > CLOSE * size for dim, size in sizes.items()):
        for found in _models(model, [{dim: isqrt(size * most[dim]) for dim, size in sizes.items()}], {}):
            yield from _drawn(found, seed)


def sizes_of(model: ImportedModel, feed: Feed) -> dict[str, int]:
    """The sizes of the model's named dimensions in inputs by internal name."""
    found: dict[str, int] = {}
    for name in model.dynamic_inputs:
        dims = zip(model.graph.values[name].shape or (), getattr(feed.get(name), "shape", ()), strict=False)
        found.update((dim, size) for dim, size in dims if isinstance(dim, str))
    return found


def at_sizes(model: ImportedModel, feed: Feed | None) -> str:
    """` at batch=2, seq=12`: the sizes of the model's first dynamic dimensions in these inputs; empty without any."""
    found = [] if feed is None else [f"{dim}={size}" for dim, size in sizes_of(model, feed).items()]
    more = ", …" if len(found) > _SHOWN else ""
    return f" at {', '.join(found[:_SHOWN])}{more}" if found else ""


def _changed_and_seen(model: ImportedModel) -> tuple[set[str], dict[str, int]]:
    """The dimensions whose sizes change, and the drawn sizes of all."""
    firsts, seen = first_and_seen_sizes(model)
    return set(seen) - firsts or set(seen), seen


def _sides(model: ImportedModel, changed: set[str]) -> Callable[[int], int]:
    """How many times a changed dimension gets larger or smaller for so many times the elements: an image has two."""
    counts = (sum(dim in changed for dim in model.graph.values[name].shape or ()) for name in model.graph.inputs)
    return isqrt if max(counts, default=1) > 1 else int


def _sampled(model: ImportedModel, feed: Feed) -> ImportedModel:
    """The model with the shapes of a feed for those of seeded inputs."""
    arrays = {model.sources.get(name, name): feed.get(name) for name in model.graph.inputs}
    return replace(model, samples={source: a.shape for source, a in arrays.items() if isinstance(a, np.ndarray)})


def _models(
    model: ImportedModel, tried: Iterable[Mapping[str, int]], bounds: Mapping[str, Range]
) -> Iterator[ImportedModel]:
    """The model with shapes of inputs of these sizes or the nearest that are allowed, each once, without its own."""
    seen = [dict(model.samples)]
    for sizes in tried:
        found = with_samples_in_bounds(replace(model, samples=model.allowed(_shapes(model, sizes))), bounds)
        if dict(found.samples) not in seen:
            seen.append(dict(found.samples))
            yield found


def _drawn(model: ImportedModel, seed: int) -> Iterator[dict[str, Any]]:
    """Inputs of the model's shapes; none if they cannot be drawn."""
    try:
        yield feed_for(model, None, seed)
    except InputError:
        return


def _shapes(model: ImportedModel, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The samples with these sizes of named dimensions."""
    found = dict(model.samples)
    for name in model.graph.inputs:
        source, shape = model.sources.get(name, name), model.graph.values[name].shape or ()
        if source in found and len(shape) == len(found[source]):
            dims = zip(shape, found[source], strict=True)
            found[source] = tuple(sizes.get(dim, size) if isinstance(dim, str) else size for dim, size in dims)
    return found


def _work(model: ImportedModel) -> Work:
    typical = model.typical
    return work_of(typical.graph, typical.proto.graph.node, 1)
