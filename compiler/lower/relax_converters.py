"""Converters of our own, for ONNX operators that TVM's importer lacks or gets wrong.

A converter takes a Context and the node's inputs (None where absent) and returns one expression, or a list with one per
output. All shapes are static here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from tvm import relax

op = relax.op


@dataclass(frozen=True, slots=True)
class Context:
    """What a converter may use: block builder, node, parsed attributes, opset, number of outputs, TVM's tables."""

    bb: Any
    node: onnx.NodeProto
    attrs: Mapping[str, Any]
    opset: int
    outputs: int
    tables: tuple[dict[str, Any], dict[str, Any]]


Converter = Callable[..., Any]

_TABLE: dict[str, Converter] = {}


def _converter(name: str) -> Callable[[Converter], Converter]:
    def register(function: Converter) -> Converter:
        _TABLE[name] = function
        return function

    return register


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in value.ty.shape.values)


@_converter("Shape")
def _shape_of(ctx: Context, data: Any) -> Any:
    """A constant tensor; TVM's gives a shape expression, which few operators accept and no output may be."""
    shape = _shape(data)
    return relax.const(np.array(shape[ctx.attrs.get("start", 0) : ctx.attrs.get("end")], dtype=np.int64))


CONVERTERS: Mapping[str, Converter] = MappingProxyType(_TABLE)
