"""A limit on the elements that ONNX's tools list when they infer shapes from integer vectors.

Only constants inside the proto and the shapes of values are followed, and only through a few operators, so that the
number of elements follows from the nodes alone. A few dozen nodes that double a vector result in billions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.constants import is_constant
from heterocc.compiler.importer.draft.draft import INLINE_BYTES, bodies, without_bodies
from heterocc.compiler.operators.record import LENGTHS
from heterocc.compiler.operators.table import of_node

MAX_LISTED = 1 << 22
"""The limit on elements that a tool may list, about 200 MB."""

_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def listed(graph: onnx.GraphProto) -> int:
    """An upper bound of the elements that shape inference lists; names must be unique over the graph and its bodies.

    The operators are those for which ONNX defines a propagation of data. ONNX Runtime, which always propagates it,
    has the same ones. Constants whose data is not in the graph are not listed.
    """
    return _listed(graph, {})


def listed_by_onnx(graph: onnx.GraphProto) -> int:
    """The same for ONNX's own inference, which also lists unknown elements of vectors of known length and any type."""
    return _listed(graph, {}, typed=True)


def require_few(
    graph: onnx.GraphProto, where: str, constants: Mapping[str, np.ndarray] | None = None, *, in_bodies: bool = False
) -> None:
    """Raise InvalidGraphError if more than MAX_LISTED elements would be listed; `in_bodies` counts only bodies.

    `constants` are those beside the graph. ONNX always propagates data inside bodies, even if this is disabled.
    """
    if in_bodies and not any(bodies(node) for node in graph.node):
        return
    held = (constants or {}).items()
    known = {n: a.size for n, a in held if a.nbytes <= INLINE_BYTES and a.dtype in (np.int32, np.int64)}
    count = _listed(graph, known, own=not in_bodies, typed=in_bodies)
    if count > MAX_LISTED:
        raise InvalidGraphError(
            f"shapes are computed by integer vectors of {count} elements in all, each of which shape inference lists",
            where=where,
            hint=f"compute shapes from vectors of at most {MAX_LISTED} elements in all",
        )


def _listed(graph: onnx.GraphProto, known: dict[str, int], *, own: bool = True, typed: bool = False) -> int:
    if typed:
        known.update(_lengths(graph))
    known.update((t.name, math.prod(t.dims)) for t in graph.initializer if _is_listed(t))
    total = 0
    followed: dict[tuple[str, str], bool] = {}
    for node in graph.node:
        kind = node.domain, node.op_type
        if kind not in followed:
            followed[kind] = node.op_type not in without_bodies() or bool(node.domain) or _is_followed(node)
        if not followed[kind]:
            continue
        inner = bodies(node)
        given = [known.get(name) for name in node.input[:]]
        for body in inner:
            most = max((length for length in given if length is not None), default=0)
            known.update((i.name, most) for i in body.input)
            total += _listed(body, known, typed=typed)
        length = None if node.domain else _length(node, given)
        if length is not None:
            known[node.output[0]] = length
            total += (length + sum(filter(None, given))) if own else 0
    return total


def _is_followed(node: onnx.NodeProto) -> bool:
    operator = of_node(node)
    return is_constant(node) or operator.listed or operator.length in ("rank", "one")


def _lengths(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """The values of the graph that are vectors of known length, with it."""
    for info in (*graph.input, *graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if len(dims) == 1 and dims[0].dim_value > 0:
            yield info.name, dims[0].dim_value


def _is_listed(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _INTEGERS and tensor.data_location != onnx.TensorProto.EXTERNAL


def _length(node: onnx.NodeProto, given: list[int | None]) -> int | None:
    """The number of elements of the first output if it is propagated, else None."""
    if is_constant(node):
        return next((_elements(a) for a in node.attribute), None)
    operator = of_node(node)
    if operator.length in ("rank", "one"):
        return LENGTHS[operator.length](())
    read = given[:1] if operator.length == "first" else given
    lengths = [length for length in read if length is not None]
    if not operator.listed or not lengths or len(lengths) < len(read):
        return None
    return LENGTHS[operator.length](lengths)


def _elements(attribute: onnx.AttributeProto) -> int | None:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return math.prod(attribute.t.dims) if attribute.t.data_type in _INTEGERS else None
    if attribute.type == onnx.AttributeProto.INT:
        return 1
    return len(attribute.ints) if attribute.type == onnx.AttributeProto.INTS else None
