"""Sequences: what they hold, their elements as tensors where these are known at import, and the calls of a run.

A rule for the import returns whether it replaced the node, or made its result known; a node that it leaves stays. What
sequences are given in a run is checked by the functions that it calls (runtime/native/cpu/sequences.h).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.artifacts.dtypes import Container
from heterocc.compiler.operators.containers import Call, Registers, become, kind_of, second
from heterocc.compiler.operators.record import Operator, nothing
from heterocc.compiler.symbolic.containers import NONE, Elements, Held, Typed, merged
from heterocc.compiler.symbolic.given import attribute_of
from heterocc.compiler.symbolic.opened import Listed, Pieces
from heterocc.compiler.symbolic.sizes import number

_MOST_LISTED = 256
"""The largest number of pieces of a tensor that are values of their own."""


# ---- types ----------------------------------------------------------------------------------------------------------


def _sequence(held: Held | None) -> tuple[Container, Elements] | None:
    kind = kind_of(held)
    if held is None or held.elements is None or kind is None or not kind.sequence:
        return None
    return kind, held.elements


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


def _empty(node: onnx.NodeProto, _given: Sequence[Held | None]) -> list[Typed]:
    kind = attribute_of(node, "dtype", onnx.TensorProto.FLOAT)
    dtype = str(helper.tensor_dtype_to_np_dtype(kind).name)
    return [(Container(dtype, sequence=True, optional=False).text, NONE)]


# ---- elements that are known at import ------------------------------------------------------------------------------


def _open_construct(writer: Any, node: onnx.NodeProto) -> bool:
    writer.known[node.output[0]] = Listed(tuple(node.input))
    return False


def _open_empty(writer: Any, node: onnx.NodeProto) -> bool:
    writer.known[node.output[0]] = Listed(())
    return False


def _open_split(writer: Any, node: onnx.NodeProto) -> bool:
    data, axis, keepdims = node.input[0], attribute_of(node, "axis", 0), bool(attribute_of(node, "keepdims", 1))
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
        _open_split(writer, plain)
        writer.put(plain)
        return True
    lengths = _lengths(writer, given, dim)
    if lengths is None or len(lengths) > _MOST_LISTED:
        computed = _computed_lengths(writer, given)
        if computed:
            writer.known[node.output[0]] = Listed(_pieces(writer, data, axis, given, computed))
            return False
        step = (writer.number(given) if given else 1) or 0
        if writer.fill(given) == 1 and writer.shape(given) == (dim,) != (None,):
            step = 1  # as many lengths of 1 as there are elements
        if step >= 1:
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


def _is_scalar(writer: Any, name: str) -> bool:
    array = writer.array(name)
    return bool(writer.shape(name) == () if array is None else array.ndim == 0)


def _pieces(writer: Any, data: str, axis: int, lengths: str, count: int) -> tuple[str, ...]:
    names = [writer.fresh("piece") for _ in range(count)]
    writer.add_all("Split", [data, lengths], names, axis=axis)
    return tuple(names)


def _lengths(writer: Any, given: str, dim: int | str | None) -> list[int] | None:
    """The lengths of pieces; None if they or their number depend on the run."""
    array = writer.array(given) if given else np.array(1, np.int64)
    if array is not None and array.ndim == 1:
        return [int(n) for n in array]
    if array is None or not isinstance(dim, int) or int(array) < 1:
        return None
    step = int(array)
    return [min(step, dim - start) for start in range(0, dim, step)]


def _computed_lengths(writer: Any, given: str) -> int | None:
    """The number of lengths that a vector holds."""
    shape = writer.shape(given) if given and writer.array(given) is None else None
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def _open_insert(writer: Any, node: onnx.NodeProto) -> bool:
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


def _open_erase(writer: Any, node: onnx.NodeProto) -> bool:
    held = writer.known.get(node.input[0])
    given = node.input[1] if len(node.input) > 1 else ""
    place = writer.number(given) if given else -1
    if not isinstance(held, Listed) or place is None or not -len(held.elements) <= place < len(held.elements):
        return False
    place %= len(held.elements)
    writer.known[node.output[0]] = Listed((*held.elements[:place], *held.elements[place + 1 :]))
    return False


def _open_at(writer: Any, node: onnx.NodeProto) -> bool:
    held, given, output = writer.known.get(node.input[0]), node.input[1], node.output[0]
    place = writer.number(given)
    if isinstance(held, Pieces) and held.step == 1:
        index = writer.write(_RESHAPED, given=given, shape=[1]) if held.keepdims else _as_scalar(writer, given)
        writer.write(f"output = Gather <axis = {held.axis}> (data, index)", output, data=held.data, index=index)
        return True
    if not isinstance(held, Listed):  # a longer piece could be a slice, which would not tell that there is none
        return False
    names = held.tensors
    if place is None:
        if not names or not _alike(writer, names):
            return False
        whole, index = writer.stack(names, 0), _as_scalar(writer, given)
        writer.write("output = Gather <axis = 0> (whole, index)", output, whole=whole, index=index)
        return True
    if not -len(held.elements) <= place < len(held.elements):
        return False
    return become(writer, held.elements[place], output)


def _alike(writer: Any, names: tuple[str, ...]) -> bool:
    shapes = {writer.shape(name) for name in names}
    first = next(iter(shapes))
    return len(shapes) == 1 and first is not None and None not in first


def _as_scalar(writer: Any, name: str) -> str:
    """A place as a scalar: ONNX Runtime takes a vector of one element, too."""
    scalar: str = name if writer.shape(name) == () else writer.write(_RESHAPED, given=name, shape=[])
    return scalar


_RESHAPED = "reshape = Reshape (given, shape)"


def _open_length(writer: Any, node: onnx.NodeProto) -> bool:
    held = writer.known.get(node.input[0])
    if isinstance(held, Listed):
        writer.constant(np.array(len(held.elements), np.int64), node.output[0])
        return True
    if not isinstance(held, Pieces):
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


def _open_join(writer: Any, node: onnx.NodeProto) -> bool:
    held, output = writer.known.get(node.input[0]), node.output[0]
    axis, stacked = attribute_of(node, "axis", 0), bool(attribute_of(node, "new_axis", 0))
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


def _joined(writer: Any, held: Pieces, axis: int, output: str, *, stacked: bool) -> bool:
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


# ---- calls in a run -------------------------------------------------------------------------------------------------


def _call_insert(_node: onnx.NodeProto, given: Registers, _rank: Callable[[str], int]) -> Call:
    return "insert", (given[0], given[1], given[2] if len(given) > 2 else None)


def _call_split(node: onnx.NodeProto, given: Registers, rank: Callable[[str], int]) -> Call:
    lengths, keeps = second(given), attribute_of(node, "keepdims", 1)
    if lengths is not None and not keeps and rank(node.input[1]) == 0:
        raise NotImplementedError("with keepdims=0 and one length, ONNX Runtime splits in another way than ONNX")
    axis = attribute_of(node, "axis", 0) % rank(node.input[0])
    return "split", (given[0], lengths, axis, int(keeps or lengths is not None))


def _call_join(node: onnx.NodeProto, given: Registers, rank: Callable[[str], int]) -> Call:
    axis = attribute_of(node, "axis", 0) % rank(node.output[0])
    return "join", (given[0], axis, attribute_of(node, "new_axis", 0))


def _of_sequences(name: str, holds: Any, opens: Any, call: Any, **facts: Any) -> Operator:
    return Operator(name, needs=nothing, holds=holds, opens=opens, call=call, **facts)


OPERATORS = (
    _of_sequences("ConcatFromSequence", _join, _open_join, _call_join, joins="sequence", chosen=True),
    _of_sequences("SequenceAt", _at, _open_at, lambda _n, given, _r: ("at", (given[0], given[1])), chosen=True),
    _of_sequences("SequenceConstruct", _construct, _open_construct, lambda _n, g, _r: ("tuple", tuple(g)), chosen=True),
    _of_sequences("SequenceEmpty", _empty, _open_empty, lambda _n, _g, _r: ("tuple", ())),
    _of_sequences("SequenceErase", _erase, _open_erase, lambda _n, g, _r: ("erase", (g[0], second(g))), chosen=True),
    _of_sequences("SequenceInsert", _insert, _open_insert, _call_insert, chosen=True, inserts=True),
    _of_sequences("SequenceLength", _length, _open_length, lambda _n, given, _r: ("length", (given[0],))),
    _of_sequences("SplitToSequence", _split, _open_split, _call_split, chosen=True),
)
