"""Shapes and integers of a model with named dimensions, derived node by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, shape_inference

from heterocc.compiler.importer.symbols.contents import (
    Contents,
    Given,
    Limit,
    Shape,
    as_contents,
    contents_of,
)
from heterocc.compiler.importer.symbols.shapes import shapes_of
from heterocc.compiler.importer.symbols.sizes import Size, named, number
from heterocc.passes.graph import Value


@dataclass
class Symbols:
    """What is known of a model's sizes.

    `names` are the named dimensions of its inputs, `sizes` the expressions of dimensions by their text in shapes.
    `contents` are the integers that nodes compute from shapes, by value. `limits` are assumptions of the shapes, by the
    text of the size that is limited.
    """

    names: tuple[str, ...]
    sizes: dict[str, Size] = field(default_factory=dict)
    contents: dict[str, Contents] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes.update((name, named(name)) for name in self.names)

    def shape_of(self, value: Value | None) -> Shape:
        """The shape of a value."""
        if value is None or value.shape is None:
            return None
        return tuple(number(d) if isinstance(d, int) else self.sizes.get(d) if d else None for d in value.shape)

    def dims(self, shape: Shape) -> tuple[int | str | None, ...] | None:
        """A shape as numbers and texts; None for a dimension that is not known."""
        return None if shape is None else tuple(map(self._dim, shape))

    def _dim(self, size: Size | None) -> int | str | None:
        if size is None or size.number is not None:
            return None if size is None or (size.number or 0) < 0 else size.number
        known = self.sizes.setdefault(size.text, size)
        return size.text if known == size else None  # a dimension whose name reads like an expression


def derive(
    nodes: Iterable[onnx.NodeProto],
    table: Mapping[str, Value],
    weights: Mapping[str, np.ndarray],
    opset: int,
    symbols: Symbols,
) -> dict[str, Value]:
    """The values with the shapes that follow from the named dimensions; fills the sizes and contents of `symbols`.

    `table` is what ONNX's tools infer. Where they know a dimension as a number, it is kept.
    """
    found = dict(table)
    symbols.contents = {n: c for n, a in weights.items() if (c := as_contents(a)) is not None}
    for node in nodes:
        shapes = [symbols.shape_of(found.get(name)) for name in node.input]
        contents = [symbols.contents.get(name) if name else None for name in node.input]
        given = Given(node, opset, shapes, contents, symbols.limits)
        results = shapes_of(given) or _inferred(given, found, weights, symbols)
        for index, name in enumerate(node.output):
            known = found.get(name)
            if not name or known is None or known.is_opaque:
                continue
            shape = results[index] if index < len(results) else None
            found[name] = Value(name, known.dtype, _merged(known.shape, symbols.dims(shape)))
        if node.output and node.output[0]:
            elements = contents_of(given, symbols.shape_of(found.get(node.output[0])))
            if elements is not None:
                symbols.contents[node.output[0]] = elements
    return found


def _merged(
    known: tuple[int | str | None, ...] | None, derived: tuple[int | str | None, ...] | None
) -> tuple[int | str | None, ...] | None:
    if known is None or derived is None or len(known) != len(derived):
        return derived if known is None else known
    return tuple(a if isinstance(a, int) else b if b is not None else a for a, b in zip(known, derived, strict=True))


def _inferred(
    given: Given, found: Mapping[str, Value], weights: Mapping[str, np.ndarray], symbols: Symbols
) -> list[Shape]:
    """The shapes that ONNX infers for one node, to which the texts of dimensions are names like any others."""
    node = given.node
    known = {name: found[name] for name in node.input if name in found}
    if any(name and name not in known for name in node.input) or any(a.type == a.GRAPH for a in node.attribute):
        return []
    if any(value.is_opaque for value in known.values()):
        return []
    try:
        schema = onnx.defs.get_schema(node.op_type, given.opset, node.domain)
        types = {n: helper.make_tensor_type_proto(_element(v), v.shape) for n, v in known.items()}
        data = {
            name: onnx.numpy_helper.from_array(np.ascontiguousarray(weights[name]), name)
            for name in node.input
            if name in weights and weights[name].nbytes <= _SMALL and weights[name].dtype != object
        }
        inferred = shape_inference.infer_node_outputs(schema, node, types, data)
    except (onnx.defs.SchemaError, shape_inference.InferenceError, KeyError, ValueError, RuntimeError):
        return []  # the dimensions stay unknown, and a device says why it refuses the node
    return [_read(inferred[name], symbols) if name in inferred else None for name in node.output]


_SMALL = 1024


def _element(value: Value) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)))


def _read(kind: onnx.TypeProto, symbols: Symbols) -> Shape:
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        number(d.dim_value) if d.HasField("dim_value") else symbols.sizes.get(d.dim_param)
        for d in kind.tensor_type.shape.dim
    )
