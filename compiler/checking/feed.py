"""The inputs for the check of a compile: from the user's file, or seeded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterocc.artifacts.dtypes import container
from heterocc.artifacts.errors import FeedError
from heterocc.compiler.importer.inputs.seeded import draw_inputs
from heterocc.compiler.importer.model import ImportedModel
from heterocc.runtime.feeds import InputCheck, TensorInfo
from heterocc.runtime.files.npz import read_npz
from heterocc.runtime.files.sequences import gathered


def feed_for(model: ImportedModel, path: Path | None, seed: int, way: int = 0) -> dict[str, Any]:
    """One array per graph input, or a list of arrays, by internal name; `way` is passed to draw_inputs for seeded ones.

    Raises FeedError if `path` lacks an input or has another dtype or shape, InputError if none can be drawn.
    """
    values = {name: model.sample(name) for name in model.graph.inputs}
    if path is None:
        drawn = {name: value for name, value in values.items() if name not in model.defaults}
        found = draw_inputs(model.proto, drawn, model.weights, seed, sources=model.sources, way=way)
        return {name: model.defaults[name] if name in model.defaults else found[name] for name in values}
    tensors = {
        source: TensorInfo(source, value.dtype, None if container(value.dtype) else model.input_shape(name))
        for name, value in values.items()
        for source in [model.sources.get(name, name)]
    }
    types = [(model.sources.get(name, name), value.dtype) for name, value in values.items()]
    given = gathered(types, read_npz(path, tensors))
    feed: dict[str, Any] = {}
    for name, value in values.items():
        source = model.sources.get(name, name)
        if source not in given and name in model.defaults:
            feed[name] = model.defaults[name]
            continue
        if source not in given:
            raise FeedError(
                f"input '{source}' is missing", where=str(path), hint=f"it has: {', '.join(given) or 'none'}"
            )
        array = given[source]
        if container(value.dtype):
            info = TensorInfo(source, value.dtype, None, elements=model.elements(name))
            feed[name] = InputCheck(info, str(path))(array)
            continue
        shape = model.input_shape(name)
        if str(array.dtype) != value.dtype or not _fits(array.shape, shape):
            got = f"{array.dtype}{list(array.shape)}"
            expected = f"{value.dtype}[{', '.join('?' if d is None else str(d) for d in shape or ())}]"
            hint = f"save it as such: array.astype('{value.dtype}')" if str(array.dtype) != value.dtype else None
            raise FeedError(f"input '{source}' is {got}, expected {expected}", where=str(path), hint=hint)
        feed[name] = array
    return feed


def _fits(shape: Sequence[int], wanted: Sequence[int | str | None] | None) -> bool:
    return wanted is None or (
        len(shape) == len(wanted) and all(w == s or not isinstance(w, int) for s, w in zip(shape, wanted, strict=True))
    )
