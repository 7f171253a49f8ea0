"""Constants that a model casts from int8 and scales itself: one DequantizeLinear, which keeps the integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from heterocc.compiler.importer.draft.draft import Draft, set_nodes
from heterocc.compiler.importer.draft.names import derived
from heterocc.compiler.operators.table import of_node

_LEAST = 1 << 12
"""The fewest elements of a constant that is worth it."""

_OPSET = 13
"""The first operator set whose DequantizeLinear has scales along an axis."""

_KINDS = ("int8", "uint8")


def write_dequantised(draft: Draft) -> None:
    """Replace Cast and Mul, perhaps with Sub between them, of a constant matrix of 8 bits by DequantizeLinear.

    What it computes is the same, to the bit. Only for what products and Gather read; a Transpose before these is done
    now, on the integers.
    """
    if draft.opset < _OPSET or not any(array.dtype.name in _KINDS for array in draft.weights.values()):
        return
    wanted = _read_as_matrices(draft)
    writers = {o: node for node in draft.graph.node for o in node.output}
    written: list[onnx.NodeProto] = []
    for node in draft.graph.node:
        made = None
        if node.output and node.output[0] in wanted and not node.domain:
            if of_node(node).symbol == "*":
                made = _scaled(draft, writers, node)
            elif node.op_type == "Transpose":
                made = _turned(draft, writers, node)
        if made is not None:
            writers[node.output[0]] = made
        written.append(made or node)
    set_nodes(draft.graph, written)


def _read_as_matrices(draft: Draft) -> set[str]:
    """The values that only operators read that take integers, or a Transpose that only such operators read."""
    outputs = {o.name for o in draft.graph.output}
    read: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in draft.graph.node:
        for place, name in enumerate(node.input):
            read.setdefault(name, []).append((node, place))

    def is_read_so(name: str) -> bool:
        found = read.get(name, ())
        return bool(found) and name not in outputs and all(_takes_integers(n, place) for n, place in found)

    def _takes_integers(node: onnx.NodeProto, place: int) -> bool:
        if node.domain:
            return False
        if node.op_type == "Transpose":
            return is_read_so(node.output[0])
        return of_node(node).matrix == place

    return {name for name in read if is_read_so(name)}


def _scaled(draft: Draft, writers: Mapping[str, onnx.NodeProto], node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The DequantizeLinear that is Mul(Cast(integers) [- zero], scale)."""
    for number, factor in (node.input, reversed(node.input)):
        scale, cast, zero = draft.weights.get(factor), writers.get(number), None
        if cast is not None and of_node(cast).symbol == "-" and len(cast.input) == 2:
            zero, cast = draft.weights.get(cast.input[1]), writers.get(cast.input[0])
            if zero is None:
                continue
        if scale is None or scale.dtype != np.float32 or cast is None or not of_node(cast).casts:
            continue
        data = draft.weights.get(cast.input[0])
        if data is None or data.ndim != 2 or data.size < _LEAST or data.dtype.name not in _KINDS:
            continue
        if not any(a.name == "to" and a.i == TensorProto.FLOAT for a in cast.attribute):
            continue
        axis = _axis(scale, data)
        points = None if zero is None else _points(zero, data, scale, axis)
        if axis is not None and (zero is None or points is not None):
            return _written(
                draft, node, data, (scale.reshape(-1) if scale.size > 1 else scale.reshape(()), points), axis
            )
    return None


def _axis(scale: np.ndarray, data: np.ndarray) -> int | None:
    """The axis along which scales differ, any for a single one; None if they are broadcast in another way."""
    if scale.ndim > data.ndim:
        return None
    shape = (1,) * (data.ndim - scale.ndim) + scale.shape
    along = [axis for axis, size in enumerate(shape) if size != 1]
    if len(along) > 1 or any(shape[axis] != data.shape[axis] for axis in along):
        return None
    return along[0] if along else 1


def _points(zero: np.ndarray, data: np.ndarray, scale: np.ndarray, axis: int | None) -> np.ndarray | None:
    """The zero points in the type of the data, one for each scale; None if they are not integers of it."""
    limits = np.iinfo(data.dtype)
    integral = zero.dtype == np.float32 and np.all(
        (zero == np.rint(zero)) & (zero >= limits.min) & (zero <= limits.max)
    )
    if not integral or (zero.size > 1 and (zero.size != scale.size or _axis(zero, data) != axis)):
        return None
    return np.full(scale.size, zero.reshape(-1) if zero.size > 1 else zero.reshape(()), data.dtype)


def _turned(draft: Draft, writers: Mapping[str, onnx.NodeProto], node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The DequantizeLinear of a transposed constant matrix that is Transpose of another DequantizeLinear."""
    found = writers.get(node.input[0])
    if found is None or not of_node(found).dequantises or found.domain:
        return None
    arrays = [draft.weights.get(name) for name in found.input if name]
    data = arrays[0]
    perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), [1, 0])
    if data is None or data.ndim != 2 or perm != [1, 0] or any(a is None or a.ndim > 2 for a in arrays):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in found.attribute}
    attributes["axis"] = 1 - attributes.get("axis", 1) % 2
    names = []
    for name, array in zip((n for n in found.input if n), arrays, strict=True):
        assert array is not None
        names.append(derived(name, "transposed"))
        draft.weights[names[-1]] = np.ascontiguousarray(array.T)
    return helper.make_node("DequantizeLinear", names, list(node.output), name=node.name, **attributes)


def _written(
    draft: Draft, node: onnx.NodeProto, data: np.ndarray, steps: tuple[np.ndarray, np.ndarray | None], axis: int | None
) -> onnx.NodeProto:
    scale, points = steps
    arrays = {"integers": data, "scale": scale}
    if points is not None:
        arrays["zero"] = points.reshape(scale.shape)
    names = []
    for part, array in arrays.items():
        names.append(derived(node.output[0], part))
        draft.weights[names[-1]] = array
    return helper.make_node("DequantizeLinear", names, list(node.output), name=node.name, axis=axis)
