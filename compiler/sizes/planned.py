"""The sizes of dynamic dimensions for which memory of GPUs is planned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from heterocc.artifacts.errors import Hint, ShapeOptionError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.runtime.machine.ranking import GPU_BACKENDS

FIRST = 16
"""The largest size, by default, of a dimension that is the first of an input, which is usually a batch."""

OTHERS = 512
"""The largest size, by default, of any other dimension, such as a sequence or the side of an image."""


def with_planned_sizes(
    model: ImportedModel, bounds: Mapping[str, tuple[int, int]], devices: Iterable[TargetDevice]
) -> tuple[ImportedModel, tuple[Hint | str, ...]]:
    """The model with the sizes for which memory of the GPUs among `devices` is planned, and notes on defaults.

    `bounds` are the user's, by dimension. A default is at least the size that seeded inputs have, and at most the
    largest size that the model's nodes allow, and with which tensors fit the GPUs' largest buffers. Without a GPU the
    model is returned as it is.
    """
    found = [device for device in devices if device.backend in GPU_BACKENDS]
    gpus = [device.name for device in found]
    if not gpus or model.symbols is None or not model.symbols.names:
        return model, ()
    firsts, seen = first_and_seen_sizes(model)
    planned: dict[str, tuple[int, int]] = {}
    assumed: list[str] = []
    for name in model.symbols.names:
        least, most = model.bounds.get(name, (0, None))
        if name in bounds:
            low, high = bounds[name]
        else:
            low, high = 1, max(FIRST if name in firsts else OTHERS, seen.get(name, 1), least)
            assumed.append(name)
        low, high = max(low, least, 1), high if most is None else min(high, most)
        planned[name] = low, high
    if any(low > high for low, high in planned.values()):
        return model, ()
    buffer = min((device.max_buffer for device in found if device.max_buffer is not None), default=None)
    fitted = planned if buffer is None else _fitted(model, planned, assumed, seen, buffer)
    fits = f" so that tensors have at most {buffer} bytes, the largest buffer" if fitted != planned else ""
    return replace(model, planned=fitted), _notes(gpus, fitted, assumed, fits)


def _fitted(
    model: ImportedModel,
    planned: Mapping[str, tuple[int, int]],
    assumed: Collection[str],
    seen: Mapping[str, int],
    buffer: int,
) -> dict[str, tuple[int, int]]:
    """The sizes with smaller defaults where a tensor would exceed a buffer, but fits at the sizes of seeded inputs.

    Of a tensor's dimensions the one that is the most times its seeded size is halved first.
    """
    fitted = dict(planned)
    floors = {name: max(seen.get(name, 1), fitted[name][0]) for name in assumed}
    least = replace(model, planned={**fitted, **{name: (fitted[name][0], floors[name]) for name in assumed}})
    open_ = [
        v.name for v in model.graph.values.values() if not v.is_static and (least.most_bytes(v.name) or 0) <= buffer
    ]
    while True:
        current = replace(model, planned=fitted)
        open_ = [name for name in open_ if (current.most_bytes(name) or 0) > buffer]
        if not open_:
            return fitted
        sizes = model.symbols.shape_of(model.graph.values[open_[0]]) if model.symbols is not None else None
        names = {name for size in sizes or () if size is not None for name in size.names if name in floors}
        name = max(sorted(names), key=lambda n: fitted[n][1] / floors[n])
        fitted[name] = fitted[name][0], max(fitted[name][1] // 2, floors[name])


def require_within(model: ImportedModel, feed: Mapping[str, Any]) -> None:
    """Raise ShapeOptionError (HC106) for an input, by internal name, with a size for which no memory is planned."""
    for name in model.graph.inputs:
        shape, array = model.graph.values[name].shape or (), feed.get(name)
        if isinstance(array, np.ndarray) and array.ndim == len(shape):
            for dim, size in zip(shape, array.shape, strict=True):
                low, high = model.planned.get(dim, (size, size)) if isinstance(dim, str) else (size, size)
                if not low <= size <= high:
                    source = model.sources.get(name, name)
                    raise ShapeOptionError(
                        f"dimension '{dim}' of the given input '{source}' is {size}; its bounds are {low} to {high}",
                        where=model.name,
                        hint=_remedy(model, str(dim), size, (low, high)),
                    )


def _remedy(model: ImportedModel, dim: str, size: int, bounds: tuple[int, int]) -> Hint | str:
    """What makes a size possible that is out of bounds; other sizes, if the model's nodes exclude it."""
    least, most = model.bounds.get(dim, (0, None))
    if size < max(least, 1) or (most is not None and size > most):
        return f"the model takes {max(least, 1)} {'or more' if most is None else f'to {most}'}: give such an input"
    low, high = min(bounds[0], size), max(bounds[1], size)
    return Hint(f"dims={{'{dim}': {(low, high)}}}", f"--dim {dim}={low}..{high}")


def _notes(
    gpus: list[str], planned: Mapping[str, tuple[int, int]], assumed: list[str], fits: str
) -> tuple[Hint | str, ...]:
    if not assumed:
        return ()
    sizes = ", ".join(f"{name} up to {planned[name][1]}" for name in assumed)
    options = " ".join(f"--dim {name}={planned[name][0]}..{planned[name][1]}" for name in assumed)
    names = ", ".join(f"'{name}': {planned[name]}" for name in assumed)
    text = f"memory of {', '.join(gpus)} is planned for {sizes}, by default{fits}; "
    return (Hint(f"{text}dims={{{names}}} sets these bounds", f"{text}{options} sets these bounds"),)


def first_and_seen_sizes(model: ImportedModel) -> tuple[set[str], dict[str, int]]:
    """The names that are the first dimension of an input, and the largest size of each in seeded inputs."""
    firsts: set[str] = set()
    seen: dict[str, int] = {}
    for name in model.graph.inputs:
        shape, sample = model.graph.values[name].shape or (), model.sample(name).shape or ()
        for place, (dim, size) in enumerate(zip(shape, sample, strict=False)):
            if isinstance(dim, str):
                firsts |= {dim} if place == 0 else set()
                if isinstance(size, int):
                    seen[dim] = max(size, seen.get(dim, 0))
    return firsts, seen
