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
        names = tuple(writer.add("Squeeze", [name, axes]) for name in names)
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
        axes = writer.integers(0)
        whole = writer.add("Concat", [writer.add("Unsqueeze", [name, axes]) for name in names], axis=0)
        writer.add("Gather", [whole, given], output, axis=0)
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
        index = given if not held.keepdims else writer.add("Reshape", [given, writer.integers(1)])
        writer.add("Gather", [held.data, index], output, axis=held.axis)
        return True
    if place is None or place < 0:
        return False
    if isinstance(held.step, int):
        start, end = writer.integers(place * held.step), writer.integers((place + 1) * held.step)
    else:
        wide = writer.add("Cast", [held.step], to=onnx.TensorProto.INT64)
        step = writer.add("Reshape", [wide, writer.integers(1)])
        start = writer.add("Mul", [step, writer.integers(place)])
        end = writer.add("Add", [start, step])
    writer.add("Slice", [held.data, start, end, writer.integers(held.axis)], output)
    return True


def _length(writer: Writer, node: onnx.NodeProto) -> bool:
    held = writer.known.get(node.input[0])
    if isinstance(held, Listed):
        writer.constant(np.array(len(held.elements), np.int64), node.output[0])
        return True
    if not isinstance(held, Pieces) or not isinstance(held.step, int):
        return False
    axis = writer.constant(np.array(held.axis, np.int64))
    size = writer.add("Shape", [held.data])
    if held.step == 1:
        writer.add("Gather", [size, axis], node.output[0])
        return True
    count = writer.add("Gather", [size, axis])
    more = writer.add("Add", [count, writer.constant(np.array(held.step - 1, np.int64))])
    writer.add("Div", [more, writer.constant(np.array(held.step, np.int64))], node.output[0])
    return True


def _concatenate(writer: Writer, node: onnx.NodeProto) -> bool:
    held, output, found = writer.known.get(node.input[0]), node.output[0], _attributes(node)
    axis, stacked = int(found["axis"]), bool(found.get("new_axis", 0))
    if isinstance(held, Pieces):
        return _joined(writer, held, axis, output, stacked=stacked)
    names = held.tensors if isinstance(held, Listed) else None
    if not names:
        return False
    if stacked:
        axes = writer.integers(axis)
        names = tuple(writer.add("Unsqueeze", [name, axes]) for name in names)
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
        writer.add("Identity", [held.data], output)
        return True
    others = [a for a in range(rank) if a != held.axis]
    axis %= rank if stacked else rank - 1
    order = [*others[:axis], held.axis, *others[axis:]]
    if stacked:
        writer.add("Transpose", [held.data], output, perm=order)
        return True
    moved = writer.add("Transpose", [held.data], perm=order)
    tail = writer.add("Shape", [moved], start=axis + 2)
    sizes = writer.add("Concat", [writer.integers(*[0] * axis, -1), tail], axis=0)
    writer.add("Reshape", [moved, sizes], output)
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
        writer.add("Identity", [held], output)
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
