"""Operators of sequences and optional values, each as operators of tensors.

A rule returns whether it replaced the node, or made its result known; a node that it leaves stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.importer.sequences.held import Held, Listed, Maybe, Pieces
from heterocc.compiler.importer.sequences.writer import Writer

_MOST_LISTED = 256
"""The largest number of pieces of a tensor that are values of their own."""


def _construct(writer: Writer, node: onnx.NodeProto) -> bool:
    writer.known[node.output[0]] = Listed(tuple(node.input))
    return False


def _empty(writer: Writer, node: onnx.NodeProto) -> bool:
    writer.known[node.output[0]] = Listed(())
    return False


def _identity(writer: Writer, node: onnx.NodeProto) -> bool:
    if node.input[0] in writer.known:
        writer.known[node.output[0]] = writer.known[node.input[0]]
    return False


def _split(writer: Writer, node: onnx.NodeProto) -> bool:
    found = _attributes(node)
    data, axis, keepdims = node.input[0], int(found.get("axis", 0)), bool(found.get("keepdims", 1))
    shape = writer.shape(data)
    if shape is None:
        return False
    axis %= len(shape)
    dim = shape[axis]
    given = node.input[1] if len(node.input) > 1 else ""
    if given and not keepdims and _is_scalar(writer, given):
        # ONNX Runtime, unlike ONNX, removes the axis of pieces of one given length, too, which has to be 1.
        if writer.number(given) != 1:
            return False
        plain = helper.make_node("SplitToSequence", [data], list(node.output), axis=axis, keepdims=0)
        _split(writer, plain)
        writer.put(plain)
        return True
    lengths = _lengths(writer, given, dim)
    if lengths is None or len(lengths) > _MOST_LISTED:
        computed = _computed_lengths(writer, given)
        if computed:
            writer.known[node.output[0]] = Listed(_pieces(writer, data, axis, given, computed))
            return False
        fill = writer.fill(given)
        if fill is not None and fill > 0:  # as many pieces of one length as there are
            writer.known[node.output[0]] = Pieces(data, axis, fill, keepdims=True)
            return False
        step = (writer.number(given) or given) if given else 1
        if not given or writer.shape(given) == () or isinstance(step, int):
            writer.known[node.output[0]] = Pieces(data, axis, step, keepdims or bool(given))
        return False
    if not lengths:
        writer.known[node.output[0]] = Listed(())
        return False
    names = _pieces(writer, data, axis, writer.integers(*lengths), len(lengths))
    if not keepdims and not given:
        axes = writer.integers(axis)
        names = tuple(writer.write("squeeze = Squeeze (piece, axes)", piece=name, axes=axes) for name in names)
    writer.known[node.output[0]] = Listed(names)
    return False


def _is_scalar(writer: Writer, name: str) -> bool:
    array = writer.array(name)
    return writer.shape(name) == () if array is None else array.ndim == 0


def _pieces(writer: Writer, data: str, axis: int, lengths: str, count: int) -> tuple[str, ...]:
    names = [writer.fresh("piece") for _ in range(count)]
    writer.add_all("Split", [data, lengths], names, axis=axis)
    return tuple(names)


def _lengths(writer: Writer, given: str, dim: int | str | None) -> list[int] | None:
    """The lengths of pieces; None if they or their number depend on the run."""
    array = writer.array(given) if given else np.array(1, np.int64)
    if array is not None and array.ndim == 1:
        return [int(n) for n in array]
    if array is None or not isinstance(dim, int) or int(array) < 1:
        return None
    step = int(array)
    return [min(step, dim - start) for start in range(0, dim, step)]


def _computed_lengths(writer: Writer, given: str) -> int | None:
    """The number of lengths that a vector holds."""
    shape = writer.shape(given) if given and writer.array(given) is None else None
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def _insert(writer: Writer, node: onnx.NodeProto) -> bool:
    held = writer.known.get(node.input[0])
    given = node.input[2] if len(node.input) > 2 else ""
    if not isinstance(held, Listed):
        return False
    place = writer.number(given) if given else len(held.elements)
    if place is None or not -len(held.elements) <= place <= len(held.elements):
        return False
    place += len(held.elements) if place < 0 else 0
    writer.known[node.output[0]] = Listed((*held.elements[:place], node.input[1], *held.elements[place:]))
    return False


def _erase(writer: Writer, node: onnx.NodeProto) -> bool:
    held = writer.known.get(node.input[0])
    given = node.input[1] if len(node.input) > 1 else ""
    place = writer.number(given) if given else -1
    if not isinstance(held, Listed) or place is None or not -len(held.elements) <= place < len(held.elements):
        return False
    place %= len(held.elements)
    writer.known[node.output[0]] = Listed((*held.elements[:place], *held.elements[place + 1 :]))
    return False


def _at(writer: Writer, node: onnx.NodeProto) -> bool:
    held, given, output = writer.known.get(node.input[0]), node.input[1], node.output[0]
    place = writer.number(given)
    if isinstance(held, Pieces):
        return _piece(writer, held, given, place, output)
    if not isinstance(held, Listed):
        return False
    names = held.tensors
    if place is None:
        if not names or not _alike(writer, names):
            return False
        writer.write("output = Gather <axis = 0> (whole, place)", output, whole=writer.stack(names, 0), place=given)
        return True
    if not -len(held.elements) <= place < len(held.elements):
        return False
    return _become(writer, held.elements[place], output)


def _alike(writer: Writer, names: tuple[str, ...]) -> bool:
    shapes = {writer.shape(name) for name in names}
    first = next(iter(shapes))
    return len(shapes) == 1 and first is not None and None not in first


def _piece(writer: Writer, held: Pieces, given: str, place: int | None, output: str) -> bool:
    """A piece as a slice, or a selection if it is one element long."""
    if held.step == 1:
        index = given if not held.keepdims else writer.write(_AS_VECTOR, given=given, one=[1])
        writer.write(f"output = Gather <axis = {held.axis}> (data, index)", output, data=held.data, index=index)
        return True
    if place is None or place < 0:
        return False
    if isinstance(held.step, int):
        ends = {"start": [place * held.step], "end": [(place + 1) * held.step]}
        writer.write(_CUT, output, data=held.data, **ends, axis=[held.axis])
    else:
        writer.write(_COMPUTED_CUT, output, data=held.data, step=held.step, one=[1], place=[place], axis=[held.axis])
    return True


_AS_VECTOR = "reshape = Reshape (given, one)"
_CUT = "output = Slice (data, start, end, axis)"
_COMPUTED_CUT = f"""
    cast = Cast <to = {onnx.TensorProto.INT64}> (step)
    reshape = Reshape (cast, one)
    start = Mul (reshape, place)
    end = Add (start, reshape)
    {_CUT}
"""


def _length(writer: Writer, node: onnx.NodeProto) -> bool:
    held = writer.known.get(node.input[0])
    if isinstance(held, Listed):
        writer.constant(np.array(len(held.elements), np.int64), node.output[0])
        return True
    if not isinstance(held, Pieces) or not isinstance(held.step, int):
        return False
    if held.step == 1:
        writer.write(_SIZE.format("output"), node.output[0], data=held.data, axis=held.axis)
    else:
        writer.write(_PARTS, node.output[0], data=held.data, axis=held.axis, rest=held.step - 1, step=held.step)
    return True


_SIZE = """
    shape = Shape (data)
    {} = Gather (shape, axis)
"""
_PARTS = f"""
    {_SIZE.format("gather")}
    add = Add (gather, rest)
    output = Div (add, step)
"""


def _concatenate(writer: Writer, node: onnx.NodeProto) -> bool:
    held, output, found = writer.known.get(node.input[0]), node.output[0], _attributes(node)
    axis, stacked = int(found["axis"]), bool(found.get("new_axis", 0))
    if isinstance(held, Pieces):
        return _joined(writer, held, axis, output, stacked=stacked)
    names = held.tensors if isinstance(held, Listed) else None
    if not names:
        return False
    if stacked:
        writer.stack(names, axis, output)
    else:
        writer.add("Concat", names, output, axis=axis)
    return True


def _joined(writer: Writer, held: Pieces, axis: int, output: str, *, stacked: bool) -> bool:
    """All pieces of a tensor joined again, in this or another place."""
    shape = writer.shape(held.data)
    if shape is None:
        return False
    rank = len(shape)
    if held.keepdims:
        if stacked or axis % rank != held.axis:
            return False
        writer.copy(held.data, output)
        return True
    others = [a for a in range(rank) if a != held.axis]
    axis %= rank if stacked else rank - 1
    order = [*others[:axis], held.axis, *others[axis:]]
    if stacked:
        writer.write(f"output = Transpose <perm = {order}> (data)", output, data=held.data)
        return True
    text = f"""
        transpose = Transpose <perm = {order}> (data)
        shape = Shape <start = {axis + 2}> (transpose)
        concat = Concat <axis = 0> (first, shape)
        output = Reshape (transpose, concat)
    """
    writer.write(text, output, data=held.data, first=[*[0] * axis, -1])
    return True


def _optional(writer: Writer, node: onnx.NodeProto) -> bool:
    name = node.input[0] if node.input else ""
    if not name:
        writer.known[node.output[0]] = Maybe(None)
    elif name in writer.known or _kind(writer, name) == "tensor_type":
        writer.known[node.output[0]] = Maybe(writer.known.get(name, name))
    return False


def _has_element(writer: Writer, node: onnx.NodeProto) -> bool:
    name = node.input[0] if node.input else ""
    held = writer.known.get(name)
    if name and held is None and _kind(writer, name) not in ("tensor_type", "sequence_type"):
        return False
    there = bool(name) and not (isinstance(held, Maybe) and held.content is None)
    writer.constant(np.array(there), node.output[0])
    return True


def _get_element(writer: Writer, node: onnx.NodeProto) -> bool:
    name = node.input[0]
    held = writer.known.get(name)
    if held is None and _kind(writer, name) == "tensor_type":
        held = name
    content = held.content if isinstance(held, Maybe) else held
    return content is not None and _become(writer, content, node.output[0])


def _become(writer: Writer, held: Held, output: str) -> bool:
    """Make a value that is known to be another one; return whether a node had to be written."""
    if isinstance(held, str):
        writer.copy(held, output)
        return True
    writer.known[output] = held
    return False


def _kind(writer: Writer, name: str) -> str | None:
    """The field of ONNX's type of a value; a constant is a tensor."""
    if writer.array(name) is not None:
        return "tensor_type"
    return writer.types[name].WhichOneof("value") if name in writer.types else None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


RULES: Mapping[str, Callable[[Writer, onnx.NodeProto], bool]] = MappingProxyType(
    {
        "ConcatFromSequence": _concatenate,
        "Identity": _identity,
        "Optional": _optional,
        "OptionalGetElement": _get_element,
        "OptionalHasElement": _has_element,
        "SequenceAt": _at,
        "SequenceConstruct": _construct,
        "SequenceEmpty": _empty,
        "SequenceErase": _erase,
        "SequenceInsert": _insert,
        "SequenceLength": _length,
        "SplitToSequence": _split,
    }
)
