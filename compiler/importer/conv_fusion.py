"""Fusing: what follows a convolution and is constant per channel goes into its weights and bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from heterocc.compiler.importer.draft import Draft, reads

_DTYPES = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class _Affine:
    """`y = scale * x + shift` per output channel, in float64."""

    scale: np.ndarray
    shift: np.ndarray


def fuse(draft: Draft) -> bool:
    """Fold BatchNormalization, and Mul and Add of constants, into the Conv before them; say whether any was.

    Only where the Conv has no other reader, and where both nodes ask for the same device. The Conv keeps its name and
    takes over the other node's origin and output. Computed in float64, rounded once to the weights' type.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in draft.graph.node:
        for name in reads(node):
            readers.setdefault(name, []).append(node)
    outputs = {o.name for o in draft.graph.output}
    removed: set[str] = set()
    for conv in draft.graph.node:
        while True:
            used = readers.get(conv.output[0], []) if conv.output else []
            if not _is_plain_conv(draft, conv) or len(used) != 1 or conv.output[0] in outputs:
                break
            after = used[0]
            affine = _affine(draft, conv, after)
            if affine is None or draft.affinity.get(conv.name) != draft.affinity.get(after.name):
                break
            _absorb(draft, conv, after, affine)
            removed.add(after.name)
    if removed:
        draft.replace_nodes(n for n in draft.graph.node if n.name not in removed)
    return bool(removed)


def _is_plain_conv(draft: Draft, node: onnx.NodeProto) -> bool:
    if node.op_type != "Conv" or node.domain or len(node.input) < 2 or not node.input[1]:
        return False
    constants = [draft.weights.get(name) for name in node.input[1:] if name]
    return all(array is not None and array.dtype.name in _DTYPES for array in constants)


def _affine(draft: Draft, conv: onnx.NodeProto, node: onnx.NodeProto) -> _Affine | None:
    weight = draft.weights[conv.input[1]]
    if weight.ndim < 3 or not _fits(draft, conv, weight.shape[0]):
        return None
    channels = weight.shape[0]
    if node.domain or (node.op_type != "BatchNormalization" and conv.output[0] not in list(node.input)):
        return None
    if node.op_type == "BatchNormalization":
        return _normalisation(draft, node, weight.dtype, channels) if node.input[0] == conv.output[0] else None
    if node.op_type not in ("Mul", "Add") or len(set(node.input)) != 2:
        return None
    other = draft.weights.get(next(name for name in node.input if name != conv.output[0]))
    if other is None or other.dtype != weight.dtype or other.ndim > weight.ndim:
        return None
    full = (1,) * (weight.ndim - other.ndim) + other.shape
    if full[1] not in (1, channels) or any(d != 1 for i, d in enumerate(full) if i != 1):
        return None
    per_channel = np.broadcast_to(other.reshape(-1).astype(np.float64), (channels,))
    if node.op_type == "Mul":
        return _Affine(per_channel, np.zeros(channels))
    return _Affine(np.ones(channels), per_channel)


def _fits(draft: Draft, conv: onnx.NodeProto, channels: int) -> bool:
    """Whether the convolution's bias, if any, has the shape that it must have."""
    return len(conv.input) < 3 or not conv.input[2] or draft.weights[conv.input[2]].shape == (channels,)


def _normalisation(draft: Draft, node: onnx.NodeProto, dtype: np.dtype, channels: int) -> _Affine | None:
    attributes = {a.name: a for a in node.attribute}
    training = attributes["training_mode"].i if "training_mode" in attributes else 0
    parameters = [draft.weights.get(name) for name in node.input[1:5]]
    if training or any(node.output[1:]) or draft.opset < 9 or len(parameters) != 4:
        return None
    if any(p is None or p.dtype != dtype or p.shape != (channels,) for p in parameters):
        return None
    scale, bias, mean, variance = (np.asarray(p, np.float64) for p in parameters)
    epsilon = np.float32(attributes["epsilon"].f if "epsilon" in attributes else 1e-5)
    with np.errstate(all="ignore"):  # a negative variance gives NaN, as it does in a run
        factor = scale / np.sqrt(variance + float(epsilon))
    return _Affine(factor, bias - mean * factor)


def _absorb(draft: Draft, conv: onnx.NodeProto, after: onnx.NodeProto, affine: _Affine) -> None:
    weight = draft.weights[conv.input[1]]
    bias = draft.weights[conv.input[2]] if len(conv.input) > 2 and conv.input[2] else np.zeros(weight.shape[0])
    per_output = affine.scale.reshape(-1, *(1,) * (weight.ndim - 1))
    # identifiers have no dots, so these names are free; they become identifiers with all others at the end
    names = (f"{conv.name}.weight", f"{conv.name}.bias")
    for name, values in (
        (names[0], weight.astype(np.float64) * per_output),
        (names[1], bias.astype(np.float64) * affine.scale + affine.shift),
    ):
        array = values.astype(weight.dtype)
        array.flags.writeable = False
        draft.weights[name] = array
    conv.input[1:] = names
    conv.output[0] = after.output[0]
    draft.origins[conv.name] = (*draft.origins.get(conv.name, ()), *draft.origins.get(after.name, ()))
