"""Sequences and optional values. What they are given is checked by the functions that a run calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper

from heterocc.artifacts.dtypes import Container, container
from heterocc.compiler.operators.record import Operator, nothing
from heterocc.compiler.symbolic.containers import NONE, Elements, Held, Typed, merged
from heterocc.compiler.symbolic.sizes import number


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


def same_container(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    """Identity: what it is given, if that is a container."""
    held = given[0]
    if held is None or held.elements is None:
        return None
    return [(held.dtype, held.elements)]


def _empty(node: onnx.NodeProto, _given: Sequence[Held | None]) -> list[Typed]:
    kind = attribute_of(node, "dtype", onnx.TensorProto.FLOAT)
    dtype = str(helper.tensor_dtype_to_np_dtype(kind).name)
    return [(Container(dtype, sequence=True, optional=False).text, NONE)]


def replaced_optional(kind: Container, *, optional: bool) -> str:
    """The text of a type that is or is not optional."""
    return Container(kind.dtype, kind.sequence, optional).text


OPERATORS = (
    Operator("ConcatFromSequence", joins="sequence", chosen=True, needs=nothing, holds=_join),
    Operator("Optional", needs=nothing, holds=_optional),
    Operator("OptionalGetElement", needs=nothing, holds=_get),
    Operator("OptionalHasElement", needs=nothing, holds=_has),
    Operator("SequenceAt", chosen=True, needs=nothing, holds=_at),
    Operator("SequenceConstruct", chosen=True, needs=nothing, holds=_construct),
    Operator("SequenceEmpty", needs=nothing, holds=_empty),
    Operator("SequenceErase", chosen=True, needs=nothing, holds=_erase),
    Operator("SequenceInsert", chosen=True, needs=nothing, holds=_insert),
    Operator("SequenceLength", needs=nothing, holds=_length),
    Operator("SplitToSequence", chosen=True, needs=nothing, holds=_split),
)
