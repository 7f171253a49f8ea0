"""The inputs and outputs of a model in the record of its bundle, for one shape or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterocc.artifacts.manifest import Dim, TensorSpec

Specs = Sequence[TensorSpec]


def ends(
    names: Mapping[str, Sequence[str | None]], inputs: Sequence[Specs], outputs: Sequence[Specs]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The specs of inputs and outputs, from those of each variant; a dimension in which they differ gets its name.

    `names` are the names of dimensions in the model, by input or output. An output's dimension is named after an
    input's that has the same size in all variants, preferably by the name in the model; if there is none it is None.
    """
    sizes: dict[str, list[Dim]] = {}
    found_inputs = []
    for specs in zip(*inputs, strict=True):
        shape: list[Dim] = []
        for dims, name in _places(specs, names):
            label = name or next((d for d in dims if isinstance(d, str)), None)
            shape.append(dims[0] if len(set(dims)) == 1 else label)
            if label is not None:
                sizes.setdefault(label, dims)
        found_inputs.append(_with(specs, shape))
    found_outputs = []
    for specs in zip(*outputs, strict=True):
        shape = []
        for dims, name in _places(specs, names):
            equal = [known for known, found in sizes.items() if found == dims]
            label = name if name in equal else next(iter(equal), None)
            shape.append(dims[0] if len(set(dims)) == 1 else label)
        found_outputs.append(_with(specs, shape))
    return tuple(found_inputs), tuple(found_outputs)


def _places(specs: Specs, names: Mapping[str, Sequence[str | None]]) -> list[tuple[list[Dim], str | None]]:
    """The sizes of each dimension in all variants, and its name in the model."""
    shapes = [spec.shape for spec in specs if spec.shape is not None]
    if len(shapes) < len(specs) or len({len(shape) for shape in shapes}) != 1:
        return []
    rank = len(shapes[0])
    declared = names.get(specs[0].name, ())
    declared = declared if len(declared) == rank else (None,) * rank
    return [([shape[place] for shape in shapes], declared[place]) for place in range(rank)]


def _with(specs: Specs, shape: Sequence[Dim]) -> TensorSpec:
    ranks = {None if spec.shape is None else len(spec.shape) for spec in specs}
    return specs[0].model_copy(update={"shape": tuple(shape) if ranks == {len(shape)} else None})
