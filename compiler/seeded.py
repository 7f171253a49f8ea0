"""Seeded inputs drawn to what the model itself does with them: index ranges, flags, lengths, real numbers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from heterocc.artifacts.errors import Hint, InputError
from heterocc.passes.graph import Value

_FORWARDS = frozenset(
    ["Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose", "Expand", "Slice", "Concat", "Clip"]
)
_INDEX_INPUT = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "OneHot": 0}


def draw_inputs(
    proto: onnx.ModelProto,
    inputs: Mapping[str, Value],
    constants: Mapping[str, np.ndarray[Any, Any]],
    seed: int,
) -> dict[str, np.ndarray[Any, Any]]:
    """Draw one array per graph input, the same for the same seed and input name.

    Floats are standard normal. Integers that index something (Gather, OneHot, through casts and reshapes) lie below its
    size; those compared with constants take one of these; booleans are fair coins; any other integer is 1, the one
    value that is a valid mask, length and count alike.
    Raises InputError for an input whose type cannot be drawn (string, sequence, map).
    """
    facts = _Facts(proto, constants)
    return {name: _draw(value, facts, seed) for name, value in inputs.items()}


def _draw(value: Value, facts: _Facts, seed: int) -> np.ndarray[Any, Any]:
    if value.is_opaque or not value.is_static or value.shape is None:
        raise InputError(
            f"inputs of type {value.dtype} cannot be drawn at random",
            where=f"input '{value.name}'",
            hint=Hint("give it in a file: inputs='in.npz'", "give it with --inputs"),
        )
    shape = tuple(d for d in value.shape if d is not None)
    # Each input has its own stream, so that adding an input does not change the others.
    rng = np.random.default_rng([seed, zlib.crc32(value.name.encode())])
    if value.dtype.startswith(("float", "bfloat")):
        return rng.standard_normal(shape).astype(np.float32 if value.dtype == "bfloat16" else value.dtype)
    if value.dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    bound, compared = facts.of(value.name)
    if bound is not None:
        return rng.integers(0, max(1, bound), shape).astype(value.dtype)
    if compared:
        return rng.choice(np.array(compared), shape).astype(value.dtype)
    if value.dtype in ("uint8", "int8"):
        low, high = (0, 256) if value.dtype == "uint8" else (-128, 128)
        return rng.integers(low, high, shape).astype(value.dtype)
    return np.ones(shape, value.dtype)


class _Facts:
    """What the graph says of integer values: exclusive upper bounds as indices, constants they are compared with."""

    def __init__(self, proto: onnx.ModelProto, constants: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._constants = constants
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        self._shapes: dict[str, tuple[int | None, ...]] = {name: array.shape for name, array in constants.items()}
        for info in (*proto.graph.value_info, *proto.graph.input):
            dims = info.type.tensor_type.shape.dim
            self._shapes[info.name] = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
        self._inline = {
            node.output[0]: numpy_helper.to_array(a.t)
            for node in proto.graph.node
            if node.op_type == "Constant"
            for a in node.attribute
            if a.name == "value"
        }
        for node in proto.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def of(self, name: str) -> tuple[int | None, list[int]]:
        bounds: list[int] = []
        compared: list[int] = []
        seen: set[str] = set()
        todo = [name]
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            for node in self._readers.get(value, ()):
                if node.op_type in _FORWARDS:
                    todo.extend(node.output)
                elif (place := _INDEX_INPUT.get(node.op_type)) is not None and node.input[place] == value:
                    bounds.extend(self._bound(node))
                elif node.op_type in ("Equal", "Less", "Greater"):
                    other = node.input[1] if node.input[0] == value else node.input[0]
                    array = self._constants.get(other, self._inline.get(other))
                    if array is not None and array.dtype.kind in "iu" and array.size:
                        compared.extend(int(v) for v in array.ravel()[:8])
        return (min(bounds) if bounds else None), compared

    def _bound(self, node: onnx.NodeProto) -> list[int]:
        if node.op_type == "OneHot":
            depth = self._constants.get(node.input[1], self._inline.get(node.input[1]))
            return [int(depth.ravel()[0])] if depth is not None else []
        shape = self._shapes.get(node.input[0])
        if not shape:
            return []
        axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), 0)
        if node.op_type == "GatherND":
            known = [d for d in shape if d]
            return [min(known)] if known else []
        size = shape[axis]
        return [size] if size else []
