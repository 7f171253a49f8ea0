"""Types of sequences and optional values, and what is known of the shapes of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import onnx
from onnx import helper

from heterocc.artifacts.dtypes import Container, container
from heterocc.compiler.symbolic.given import Shape
from heterocc.compiler.symbolic.sizes import number
from heterocc.passes.graph import Value


@dataclass(frozen=True, slots=True)
class Elements:
    """The tensors of a sequence or an optional value.

    `shape` is that of all of them: a size is None if it differs or is not known, the shape if the rank does or is not.
    Without `some` there are none.
    """

    shape: Shape
    some: bool = True


NONE = Elements(None, some=False)

Typed = tuple[str, Shape | Elements]
"""The dtype of a result, and its shape or, of a container, what it holds."""


@dataclass(frozen=True, slots=True)
class Held:
    """An input of a node: its dtype, and its shape if it is a tensor, or else what it holds."""

    dtype: str
    shape: Shape
    elements: Elements | None


def merged(one: Elements, other: Elements) -> Elements:
    """What is known of a value that is one of two."""
    if not (one.some and other.some):
        return one if one.some else other
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return Elements(None)
    return Elements(tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)))


def elements_of(kind: onnx.TypeProto) -> Elements | None:
    """What the type of a value says of the tensors that it holds; None for a tensor.

    Names of dimensions say nothing: the tensors of a sequence may have different sizes.
    """
    if kind.WhichOneof("value") not in ("sequence_type", "optional_type"):
        return None
    while not kind.HasField("tensor_type"):
        field = kind.WhichOneof("value")
        if field not in ("sequence_type", "optional_type"):
            return Elements(None)
        kind = getattr(kind, field).elem_type
    if not kind.tensor_type.HasField("shape"):
        return Elements(None)
    dims = kind.tensor_type.shape.dim
    return Elements(tuple(number(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims))


def touches_containers(node: onnx.NodeProto) -> bool:
    """Whether a node is one of the operators on sequences and optional values."""
    return not node.domain and node.op_type in _RULES


def container_results(node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    """The results of an operator on sequences and optional values; None if they are not known."""
    return _RULES[node.op_type](node, given)


def inputs_of(
    node: onnx.NodeProto,
    values: Mapping[str, Value],
    elements: Mapping[str, Elements],
    shape_of: Callable[[Value], Shape],
) -> list[Held | None] | None:
    """The inputs of a node on sequences or optional values; None for other nodes."""
    if not touches_containers(node) or (node.op_type == "Identity" and node.input[0] not in elements):
        return None
    found = [values.get(name) if name else None for name in node.input]
    return [None if v is None else Held(v.dtype, shape_of(v), elements.get(v.name)) for v in found]


def note_results(
    node: onnx.NodeProto,
    typed: Sequence[Typed],
    values: MutableMapping[str, Value],
    elements: MutableMapping[str, Elements],
) -> tuple[list[str | None], list[Shape]]:
    """Add the results that are sequences or optional values; returns dtypes and shapes, None for those."""
    kinds: list[str | None] = []
    shapes: list[Shape] = []
    for name, (dtype, what) in zip(node.output, typed, strict=False):
        kinds.append(dtype)
        shapes.append(None if isinstance(what, Elements) else what)
        if isinstance(what, Elements):
            elements[name] = what
            values[name] = Value(name, dtype, None)
    return kinds, shapes


def _kind(held: Held | None) -> Container | None:
    return None if held is None else container(held.dtype)


def _sequence(held: Held | None) -> tuple[Container, Elements] | None:
    kind = _kind(held)
    if held is None or held.elements is None or kind is None or not kind.sequence:
        return None
    return kind, held.elements


def attribute_of(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """The value of an attribute, or the default of a node that lacks it."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _empty(node: onnx.NodeProto, _given: Sequence[Held | None]) -> list[Typed]:
    kind = attribute_of(node, "dtype", onnx.TensorProto.FLOAT)
    dtype = str(helper.tensor_dtype_to_np_dtype(kind).name)
    return [(Container(dtype, sequence=True, optional=False).text, NONE)]


def _construct(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    tensors = [held for held in given if held is not None]
    if not tensors or len(tensors) != len(given):
        return None
    found = NONE
    for held in tensors:
        found = merged(found, Elements(held.shape))
    return [(Container(tensors[0].dtype, sequence=True, optional=False).text, found)]


def _insert(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    into = _sequence(given[0])
    if into is None or given[1] is None:
        return None
    return [(into[0].text, merged(into[1], Elements(given[1].shape)))]


def _erase(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    found = _sequence(given[0])
    return None if found is None else [(found[0].text, found[1])]


def _at(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    found = _sequence(given[0])
    return None if found is None else [(found[0].dtype, found[1].shape)]


def _length(_node: onnx.NodeProto, _given: Sequence[Held | None]) -> list[Typed]:
    return [("int64", ())]


def _split(node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    data, lengths = given[0], given[1] if len(given) > 1 else None
    if data is None:
        return None
    text = Container(data.dtype, sequence=True, optional=False).text
    if data.shape is None:
        return [(text, Elements(None))]
    axis = attribute_of(node, "axis", 0) % len(data.shape)
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    if lengths is None:
        one = (number(1),) if attribute_of(node, "keepdims", 1) else ()
        return [(text, Elements((*before, *one, *after)))]
    return [(text, Elements((*before, None, *after)))]


def _join(node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    found = _sequence(given[0])
    if found is None:
        return None
    kind, shape = found[0], found[1].shape
    if shape is None:
        return [(kind.dtype, None)]
    axis, stacks = attribute_of(node, "axis", 0), bool(attribute_of(node, "new_axis", 0))
    axis %= len(shape) + stacks
    return [(kind.dtype, (*shape[:axis], None, *shape[axis if stacks else axis + 1 :]))]


def _optional(node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    held = given[0] if given else None
    if held is not None:
        kind = _kind(held) or Container(held.dtype, sequence=False, optional=True)
        return [(replaced_optional(kind, optional=True), held.elements or Elements(held.shape))]
    declared = attribute_of(node, "type", None)
    if declared is None:
        return None
    inner = declared.sequence_type.elem_type if declared.HasField("sequence_type") else declared
    dtype = str(helper.tensor_dtype_to_np_dtype(inner.tensor_type.elem_type).name)
    sequence = declared.HasField("sequence_type")
    return [(Container(dtype, sequence=sequence, optional=True).text, NONE)]


def _has(_node: onnx.NodeProto, _given: Sequence[Held | None]) -> list[Typed]:
    return [("bool", ())]


def _get(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    held = given[0]
    if held is None:
        return None
    kind = _kind(held)
    if kind is None:
        return [(held.dtype, held.shape)]
    if held.elements is None:
        return None
    if not kind.sequence:
        return [(kind.dtype, held.elements.shape)]
    return [(replaced_optional(kind, optional=False), held.elements)]


def _identity(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    held = given[0]
    if held is None or held.elements is None:
        return None
    return [(held.dtype, held.elements)]


def replaced_optional(kind: Container, *, optional: bool) -> str:
    """The text of a type that is or is not optional."""
    return Container(kind.dtype, kind.sequence, optional).text


def without(elements: Elements, names: frozenset[str]) -> Elements:
    """What is known where sizes of these names are not."""
    if elements.shape is None:
        return elements
    shape = tuple(None if d is None or d.names & names else d for d in elements.shape)
    return replace(elements, shape=shape)


_RULES: Mapping[str, Callable[[onnx.NodeProto, Sequence[Held | None]], list[Typed] | None]] = MappingProxyType(
    {
        "ConcatFromSequence": _join,
        "Identity": _identity,
        "Optional": _optional,
        "OptionalGetElement": _get,
        "OptionalHasElement": _has,
        "SequenceAt": _at,
        "SequenceConstruct": _construct,
        "SequenceEmpty": _empty,
        "SequenceErase": _erase,
        "SequenceInsert": _insert,
        "SequenceLength": _length,
        "SplitToSequence": _split,
    }
)
