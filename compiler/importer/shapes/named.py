"""Named dimensions of the model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from heterocc.artifacts.errors import ShapeOptionError
from heterocc.compiler.importer.draft.draft import Draft
from heterocc.runtime.feeds import nearest
from heterocc.runtime.files.shape_options import MAX_ELEMENTS


def is_name(text: str) -> bool:
    """Whether the name of a dimension is one; exporters write `?` and the like for unknown dimensions."""
    return any(c.isalnum() for c in text) and text != "None"


def is_symbol(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether the dimension has a name."""
    return dim.WhichOneof("value") == "dim_param" and is_name(dim.dim_param)


def dims_of(info: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    """The dimensions of a tensor; empty for other values."""
    return list(info.type.tensor_type.shape.dim) if info.type.HasField("tensor_type") else []


def names_of(inputs: Sequence[onnx.ValueInfoProto]) -> list[str]:
    """The names of the inputs' dimensions, each once, in order."""
    return list(dict.fromkeys(dim.dim_param for info in inputs for dim in dims_of(info) if is_symbol(dim)))


def require_names(draft: Draft, dims: Mapping[str, int], where: str) -> None:
    """Raise ShapeOptionError (HC106) for a name that no input has, or a size that is not one."""
    known = names_of([i for i in draft.graph.input if i.name not in draft.weights])
    for name, size in dims.items():
        if name not in known:
            raise ShapeOptionError(
                f"no dimension of the model's inputs is named '{name}'",
                where=where,
                hint=nearest(name, known) if known else "its inputs have no named dimensions",
            )
        check_size(name, size, where)


def check_size(name: str, size: object, where: str) -> None:
    """Raise ShapeOptionError (HC106) for a size that a dimension cannot have."""
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_ELEMENTS:
        raise ShapeOptionError(
            f"dimension '{name}' cannot be {size!r}"[:120], where=where, hint="sizes are whole numbers, 0 or more"
        )


def split_by_names(inputs: Sequence[onnx.ValueInfoProto]) -> tuple[list[str], list[onnx.ValueInfoProto]]:
    """The names that fix dynamic inputs, and the inputs for which names are not enough."""
    named: list[onnx.ValueInfoProto] = []
    unnamed: list[onnx.ValueInfoProto] = []
    for info in inputs:
        whole = info.type.tensor_type.HasField("shape") and all(
            is_symbol(dim) or (dim.HasField("dim_value") and dim.dim_value >= 0) for dim in dims_of(info)
        )
        (named if whole else unnamed).append(info)
    fixed = set(names_of(unnamed))
    return [name for name in names_of(named) if name not in fixed], unnamed


def sizes_of(
    names: Sequence[str], inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """The sizes of named dimensions in given shapes of the inputs."""
    found = {
        dim.dim_param: size
        for info in inputs
        for dim, size in zip(dims_of(info), shapes[info.name], strict=False)
        if is_symbol(dim)
    }
    return {name: found[name] for name in names}


def quoted(name: str) -> str:
    """A name as an argument of a command."""
    return name if all(c.isalnum() or c in "_.-/:" for c in name) else f"'{name}'"
