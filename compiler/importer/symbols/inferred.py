"""Dtypes and shapes that ONNX infers for single nodes, read with named dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, shape_inference

from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.sizes import number
from heterocc.passes.graph import Value

_SMALL = 1024
"""The bytes of the largest constants that the inference gets."""


def inferred_by_onnx(
    given: Given, found: Mapping[str, Value], weights: Mapping[str, np.ndarray], symbols: Symbols
) -> tuple[list[str | None], list[Shape]]:
    """Dtypes and shapes that ONNX infers for one node, to which the texts of dimensions are names like any others."""
    node = given.node
    known = {name: found[name] for name in node.input if name in found}
    if any(name and name not in known for name in node.input) or any(a.type == a.GRAPH for a in node.attribute):
        return [], []
    if any(value.is_opaque for value in known.values()):
        return [], []
    try:
        schema = onnx.defs.get_schema(node.op_type, given.opset, node.domain)
        types = {n: helper.make_tensor_type_proto(_element(v), v.shape) for n, v in known.items()}
        data = {
            name: onnx.numpy_helper.from_array(np.ascontiguousarray(weights[name]), name)
            for name in node.input
            if name in weights and weights[name].nbytes <= _SMALL and weights[name].dtype != object
        }
        inferred = shape_inference.infer_node_outputs(schema, node, types, data)
    except shape_inference.InferenceError:
        symbols.branches.broken[node.name] = symbols.branches.place
        return [], []
    except (
        onnx.checker.ValidationError,  # a type that the operator does not take
        onnx.defs.SchemaError,
        KeyError,
        ValueError,
        RuntimeError,
        TypeError,
    ):
        return [], []  # the dimensions stay unknown, and a device says why it refuses the node
    read = [inferred.get(name) for name in node.output]
    dtypes = [dtype_of(t.tensor_type.elem_type) if t is not None and t.HasField("tensor_type") else None for t in read]
    return dtypes, [None if t is None else _read(t, symbols) for t in read]


def _element(value: Value) -> int:
    if value.dtype == "string":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)))


def dtype_of(element: int) -> str | None:
    """The dtype of an element type of ONNX; None for strings and for none."""
    if element in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return None
    return str(helper.tensor_dtype_to_np_dtype(element).name)


def _read(kind: onnx.TypeProto, symbols: Symbols) -> Shape:
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        number(d.dim_value) if d.HasField("dim_value") else symbols.sizes.get(d.dim_param)
        for d in kind.tensor_type.shape.dim
    )
