"""Inputs of a model at sizes of its dynamic dimensions, drawn from the values that the compiler finds valid.

`python -m benchmarks.dynamic_sizes.inputs MODEL.onnx SIZES`, with sizes as JSON, prints `shape_options`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.compiler.importer.inputs.seeded import draw_inputs
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.passes.graph import Value


def shapes_at(model: ImportedModel, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs that have no default, by their names in the graph."""
    found = {}
    for name in model.graph.inputs:
        if name not in model.defaults:
            dims = [size if isinstance(size, int) else sizes.get(str(size)) for size in model.input_shape(name) or ()]
            if None in dims:
                raise SystemExit(f"{model.name}: give sizes of {model.input_shape(name)}")
            found[name] = tuple(size for size in dims if size is not None)
    return found


def shape_options(path: Path, sizes: Mapping[str, int]) -> list[str]:
    """The options of `heterocc compile` that fix a model's inputs to sizes."""
    model = import_model(path, keep_dims=True)
    shapes = shapes_at(model, sizes).items()
    return [o for name, dims in shapes for o in ("--shape", f"{model.sources.get(name, name)}={_listed(dims)}")]


def _listed(dims: tuple[int, ...]) -> str:
    return ",".join(map(str, dims))


def feed_of(path: Path, sizes: Mapping[str, int], values: Mapping[str, int | str]) -> dict[str, Any]:
    """Seeded inputs by the model's names; those named in `values` hold one number or the size of a dimension."""
    model = import_model(path, keep_dims=True)
    wanted = {n: Value(n, model.graph.values[n].dtype, shape) for n, shape in shapes_at(model, sizes).items()}
    drawn = draw_inputs(model.proto, wanted, model.weights, 0, sources=model.sources)
    feed = {model.sources.get(name, name): array for name, array in drawn.items()}
    for name, value in values.items():
        feed[name] = np.full_like(feed[name], sizes[value] if isinstance(value, str) else value)
    return feed


if __name__ == "__main__":
    print(json.dumps(shape_options(Path(sys.argv[1]), json.loads(sys.argv[2]))))
