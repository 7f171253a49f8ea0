"""Larger inputs than the drawn ones, at which plans of models with dynamic sizes are timed, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from heterocc.artifacts.errors import InputError
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.importer.estimates.runs import Work, work_of
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.planned_sizes import first_and_seen_sizes
from heterocc.compiler.shape_requests import with_samples_in_bounds

MOST_WORK = Work(1e9, 1 << 25)
"""The most work of a run at larger sizes, some 20 ms: whoever needs more shows at the drawn sizes what matters."""

TIMES = (512, 64, 16, 4)
"""How many times the drawn sizes the larger ones are, the first with which the model runs: a signal has 80,000 samples
where 128 are drawn, and a text model of 512 positions takes 4 times 128."""


def larger_feeds(model: ImportedModel, bounds: Mapping[str, tuple[int, int]], seed: int) -> Iterator[dict[str, Any]]:
    """Inputs by internal name, largest first, with which the model may not run; none if the drawn sizes tell enough.

    Dimensions that are the first of an input, usually a batch, stay as they are, unless there are no others. `bounds`
    are those of named dimensions.
    """
    if model.symbols is None or not model.samples or _work(model).flops * TIMES[-1] > MOST_WORK.flops:
        return
    firsts, seen = first_and_seen_sizes(model)
    grown = set(seen) - firsts or set(seen)
    tried = [dict(model.samples)]
    for times in TIMES:
        sizes = {name: size * times if name in grown else size for name, size in seen.items()}
        samples = model.allowed(_shapes(model, sizes))
        larger = with_samples_in_bounds(replace(model, samples=samples), bounds)
        if dict(larger.samples) in tried or not _work(larger).within(MOST_WORK):
            continue
        tried.append(dict(larger.samples))
        try:
            yield feed_for(larger, None, seed)
        except InputError:
            continue


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
