"""The sizes of dynamic dimensions for which memory of GPUs is planned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from heterocc.artifacts.errors import Hint, ShapeOptionError
from heterocc.artifacts.manifest import ANY_SIZE, Range
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.runtime.machine.ranking import GPU_BACKENDS

FIRST = 16
"""The largest size, by default, of a dimension that is the first of an input, which is usually a batch."""

OTHERS = 512
"""The largest size, by default, of any other dimension, such as a sequence or the side of an image."""


def with_planned_sizes(
    model: ImportedModel, bounds: Mapping[str, Range], devices: Iterable[TargetDevice]
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
    planned: dict[str, Range] = {}
    assumed: list[str] = []
    for name in model.symbols.names:
        allowed = model.bounds.get(name, ANY_SIZE)
        most = max(FIRST if name in firsts else OTHERS, seen.get(name, 1), allowed.min)
        if name not in bounds:
            assumed.append(name)
        planned[name] = bounds.get(name, Range(max=most)) & Range(min=max(allowed.min, 1), max=allowed.max)
    if any(sizes.is_empty for sizes in planned.values()):
        return model, ()
    buffer = min((device.max_buffer for device in found if device.max_buffer is not None), default=None)
    fitted = planned if buffer is None else _fitted(model, planned, assumed, seen, buffer)
    fits = f" so that tensors have at most {buffer} bytes, the largest buffer" if fitted != planned else ""
    return replace(model, planned=fitted), _notes(gpus, fitted, assumed, fits)


def _fitted(
    model: ImportedModel, planned: Mapping[str, Range], assumed: Collection[str], seen: Mapping[str, int], buffer: int
) -> dict[str, Range]:
    """The sizes with smaller defaults where a tensor would exceed a buffer, but fits at the sizes of seeded inputs.

    Of a tensor's dimensions the one that is the most times its seeded size is halved first.
    """
    fitted = dict(planned)
    floors = {name: max(seen.get(name, 1), fitted[name].min) for name in assumed}
    least = replace(model, planned={**fitted, **{n: Range(min=fitted[n].min, max=floors[n]) for n in assumed}})
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
        name = max(sorted(names), key=lambda n: _most(fitted[n]) / floors[n])
        fitted[name] = Range(min=fitted[name].min, max=max(_most(fitted[name]) // 2, floors[name]))


def _most(planned: Range) -> int:
    """The largest size of a dimension for which memory is planned, which always has one."""
    assert planned.max is not None
    return planned.max


def require_within(model: ImportedModel, feed: Mapping[str, Any]) -> None:
    """Raise ShapeOptionError (HC106) for an input, by internal name, with a size for which no memory is planned."""
    for name in model.graph.inputs:
        shape, array = model.graph.values[name].shape or (), feed.get(name)
        if isinstance(array, np.ndarray) and array.ndim == len(shape):
            for dim, size in zip(shape, array.shape, strict=True):
                planned = model.planned.get(dim, ANY_SIZE) if isinstance(dim, str) else ANY_SIZE
                if size not in planned:
                    source = model.sources.get(name, name)
                    raise ShapeOptionError(
                        f"dimension '{dim}' of the given input '{source}' is {size}; its bounds are {planned}",
                        where=model.name,
                        hint=_remedy(model, str(dim), size, planned),
                    )


def _remedy(model: ImportedModel, dim: str, size: int, planned: Range) -> Hint | str:
    """What makes a size possible that is out of bounds; other sizes, if the model's nodes exclude it."""
    allowed = model.bounds.get(dim, ANY_SIZE) & Range(min=1)
    if size not in allowed:
        return f"the model takes {allowed}: give such an input"
    low, high = min(planned.min, size), max(_most(planned), size)
    return Hint(f"dims={{'{dim}': {(low, high)}}}", f"--dim {dim}={low}..{high}")


def _notes(gpus: list[str], planned: Mapping[str, Range], assumed: list[str], fits: str) -> tuple[Hint | str, ...]:
    if not assumed:
        return ()
    sizes = ", ".join(f"{name} up to {planned[name].max}" for name in assumed)
    options = " ".join(f"--dim {name}={planned[name].min}..{planned[name].max}" for name in assumed)
    names = ", ".join(f"'{name}': {planned[name].min, planned[name].max}" for name in assumed)
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
