"""What is inferred for single nodes, by ONNX or ONNX Runtime, asked once for all nodes that differ in names alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, shape_inference

from heterocc.artifacts.foreign import pass_foreign
from heterocc.passes.graph import Value
from heterocc.runtime.execute import ort_session

_SMALL = 1024
"""The bytes of the largest constants that the inference gets, and of the attributes of nodes that are remembered."""

_KINDS = 4096
"""The most kinds of nodes whose results are remembered."""

Inferred = tuple[tuple[str | None, tuple[int | str, ...] | None], ...]
"""The dtype and the dimensions of each result; the text of a dimension that is not known may be empty."""


class _Kind(NamedTuple):
    """A node without names: `inputs` and `outputs` have the numbers of its values, 0 for an absent one.

    `types` has the dtypes and shapes of the values that it reads, `data` the small constants among them: dtype, shape
    and bytes.
    """

    op_type: str
    domain: str
    opset: int
    attributes: tuple[bytes, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    types: tuple[tuple[str, tuple[int | str | None, ...] | None], ...]
    data: tuple[tuple[int, np.dtype, tuple[int, ...], bytes], ...]


def infer_node(
    node: onnx.NodeProto, opset: int, found: Mapping[str, Value], weights: Mapping[str, np.ndarray]
) -> Inferred | None:
    """The types that ONNX infers for a node's results, empty if it infers none; None if it finds the node broken.

    ONNX Runtime infers those of its own operators. It does so for whole graphs, too, but not in branches and bodies.
    """
    numbers: dict[str, int] = {"": 0}
    types = []
    data = []
    for name in node.input:
        if name in numbers:
            continue
        value = found.get(name)
        if value is None or value.is_opaque:
            return ()
        numbers[name] = len(numbers)
        types.append((value.dtype, value.shape))
        array = weights.get(name)
        if array is not None and array.nbytes <= _SMALL and array.dtype != object:
            data.append((numbers[name], array.dtype, array.shape, array.tobytes()))
    if any(a.type == a.GRAPH for a in node.attribute):
        return ()
    attributes = tuple(a.SerializeToString(deterministic=True) for a in node.attribute)
    inputs = tuple(numbers[name] for name in node.input)
    outputs = tuple(index + 1 if name else 0 for index, name in enumerate(node.output))
    kind = _Kind(node.op_type, node.domain, opset, attributes, inputs, outputs, tuple(types), tuple(data))
    few = sum(map(len, attributes)) <= _SMALL and len(inputs) + len(outputs) <= _SMALL
    return _remembered(kind) if few else _infer(kind)


def _infer(kind: _Kind) -> Inferred | None:
    names = [f"i{index}" if index else "" for index in range(len(kind.types) + 1)]
    written = [f"o{index}" if index else "" for index in kind.outputs]
    try:
        node = onnx.NodeProto(op_type=kind.op_type, domain=kind.domain, output=written)
        node.input.extend(names[index] for index in kind.inputs)
        node.attribute.extend(map(onnx.AttributeProto.FromString, kind.attributes))
        types = {
            name: helper.make_tensor_type_proto(_element(dtype), shape)
            for name, (dtype, shape) in zip(names[1:], kind.types, strict=True)
        }
        data = {
            names[index]: onnx.numpy_helper.from_array(np.frombuffer(content, dtype).reshape(shape), names[index])
            for index, dtype, shape, content in kind.data
        }
        if not onnx.defs.has(kind.op_type, kind.domain):
            return _by_onnx_runtime(node, types, data)
        schema = onnx.defs.get_schema(kind.op_type, kind.opset, kind.domain)
        inferred = shape_inference.infer_node_outputs(schema, node, types, data)
    except shape_inference.InferenceError:
        return None
    except (
        onnx.checker.ValidationError,  # a type that the operator does not take
        onnx.defs.SchemaError,
        KeyError,
        ValueError,
        RuntimeError,
        TypeError,
    ):
        return ()  # the dimensions stay unknown, and a device says why it refuses the node
    return tuple(_read(inferred.get(name)) for name in written)


def _by_onnx_runtime(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], data: Mapping[str, onnx.TensorProto]
) -> Inferred:
    inputs = [onnx.ValueInfoProto(name=name, type=kind) for name, kind in types.items() if name not in data]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs, list(data.values()))
    imports = [helper.make_opsetid(domain, version) for domain, version in {node.domain: 1, "": _OPSET}.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    try:
        options = ort_session.session_options(threads=1, optimise="none")
        found = {o.name: o for o in ort_session.load_only(model.SerializeToString(), options).outputs_meta}
    except Exception as error:  # ONNX Runtime's classes have no common base; it does not know the operator, for example
        pass_foreign(error)
        return ()
    return tuple(_typed(found.get(name)) for name in node.output)


_OPSET, _IR_VERSION = 17, 8
"""Versions for models of ONNX Runtime's own operators alone."""


def _typed(end: Any) -> tuple[str | None, tuple[int | str, ...] | None]:
    """The dtype and the dimensions of an output of ONNX Runtime, which lists none for a scalar or an unknown rank."""
    kind = None if end is None else end.type
    if kind is None or not kind.startswith("tensor("):
        return None, None
    dtype = dtype_of(onnx.TensorProto.DataType.Value(kind.removeprefix("tensor(").removesuffix(")").upper()))
    return dtype, tuple("" if dim is None else dim for dim in end.shape) or None


_remembered = lru_cache(_KINDS)(_infer)


def _read(kind: onnx.TypeProto | None) -> tuple[str | None, tuple[int | str, ...] | None]:
    if kind is None or not kind.HasField("tensor_type"):
        return None, None
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return dtype_of(tensor.elem_type), None
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)
    return dtype_of(tensor.elem_type), dims


def _element(dtype: str) -> int:
    if dtype == "string":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@cache
def dtype_of(element: int) -> str | None:
    """The dtype of an element type of ONNX; None for strings and for none."""
    if element in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return None
    return str(helper.tensor_dtype_to_np_dtype(element).name)
