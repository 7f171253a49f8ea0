"""Fusing of constant per-channel operations into the weights and bias of the convolution before them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.draft.surgery import Node, put_together, take_apart
from heterocc.compiler.operators.table import of_node

_NORMALISATION = "BatchNormalization"
_DTYPES = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class _Affine:
    """`y = scale * x + shift` per output channel, in float64."""

    scale: np.ndarray
    shift: np.ndarray


def fuse(draft: Draft) -> bool:
    """Fold BatchNormalization, and Mul and Add of constants, into the Conv before them; return whether any was folded.

    The Conv must have no other reader, and both nodes the same affinity. The Conv keeps its name and gets the other
    node's origin and output. Weights are computed in float64 and rounded once to their type.
    """
    written = {name for node in draft.graph.node if of_node(node).window == "product" for name in node.output}
    after = [node.input for node in draft.graph.node if _can_be_fused(node) and not written.isdisjoint(node.input)]
    if all(draft.weights.keys().isdisjoint(inputs) for inputs in after):
        return False
    graph = take_apart(draft)
    outside = set(graph.nodes)
    outputs = {o.name for o in graph.outputs}
    fused = False
    for conv in graph.nodes:
        while _is_plain_conv(conv) and conv.outputs[0].name not in outputs:
            readers = conv.outputs[0].outputs
            if len(readers) != 1 or readers[0] not in outside:
                break
            after = readers[0]
            affine = _affine(conv, after, draft.opset)
            if affine is None or draft.affinity.get(conv.name) != draft.affinity.get(after.name):
                break
            conv.inputs = [conv.inputs[0], *_scaled(conv, affine)]
            conv.outputs = list(after.outputs)[:1]
            after.inputs.clear()
            after.outputs.clear()
            draft.weights.update((t.name, t.values) for t in conv.inputs[1:])
            draft.origins[conv.name] = (*draft.origins.get(conv.name, ()), *draft.origins.get(after.name, ()))
            fused = True
    if fused:
        put_together(graph, draft)
    return fused


def _can_be_fused(node: onnx.NodeProto) -> bool:
    return node.op_type == _NORMALISATION or of_node(node).symbol in ("*", "+")


def _is_plain_conv(node: Node) -> bool:
    if of_node(node.proto).window != "product" or len(node.inputs) < 2 or node.inputs[1].is_empty() or not node.outputs:
        return False
    given = [t for t in node.inputs[1:] if not t.is_empty()]
    return all(isinstance(t, gs.Constant) and t.dtype.name in _DTYPES for t in given)


def _affine(conv: Node, node: Node, opset: int) -> _Affine | None:
    weight = conv.inputs[1].values
    if weight.ndim < 3 or node.domain or any(t.shape != weight.shape[:1] for t in _bias(conv)):
        return None
    channels = weight.shape[0]
    if node.op == _NORMALISATION:
        return _normalisation(node, weight.dtype, channels, opset) if node.inputs[0] is conv.outputs[0] else None
    symbol = of_node(node.proto).symbol
    if symbol not in ("*", "+") or len(node.inputs) != 2:
        return None
    other = next((t.values for t in node.inputs if isinstance(t, gs.Constant)), None)
    if other is None or other.dtype != weight.dtype or other.ndim > weight.ndim:
        return None
    full = (1,) * (weight.ndim - other.ndim) + other.shape
    if full[1] not in (1, channels) or any(d != 1 for i, d in enumerate(full) if i != 1):
        return None
    per_channel = np.broadcast_to(other.reshape(-1).astype(np.float64), (channels,))
    if symbol == "*":
        return _Affine(per_channel, np.zeros(channels))
    return _Affine(np.ones(channels), per_channel)


def _bias(conv: Node) -> list[gs.Constant]:
    """The convolution's bias, if it has one."""
    return [t for t in conv.inputs[2:] if not t.is_empty()]


def _normalisation(node: Node, dtype: np.dtype, channels: int, opset: int) -> _Affine | None:
    attributes = {a.name: a for a in node.proto.attribute}
    training = attributes["training_mode"].i if "training_mode" in attributes else 0
    parameters = [t.values for t in node.inputs[1:5] if isinstance(t, gs.Constant)]
    if training or any(t.name for t in node.outputs[1:]) or opset < 9 or len(parameters) != 4:
        return None
    if any(p.dtype != dtype or p.shape != (channels,) for p in parameters):
        return None
    scale, bias, mean, variance = (np.asarray(p, np.float64) for p in parameters)
    epsilon = np.float32(attributes["epsilon"].f if "epsilon" in attributes else 1e-5)
    with np.errstate(all="ignore"):  # a negative variance gives NaN, as it does in a run
        factor = scale / np.sqrt(variance + float(epsilon))
    return _Affine(factor, bias - mean * factor)


def _scaled(conv: Node, affine: _Affine) -> Iterator[gs.Constant]:
    """The weights and the bias of the fused convolution."""
    weight = conv.inputs[1].values
    bias = next((t.values for t in _bias(conv)), np.zeros(weight.shape[0]))
    per_output = affine.scale.reshape(-1, *(1,) * (weight.ndim - 1))
    # identifiers have no dots, so these names are free; they become identifiers with all others at the end
    for name, values in (
        (f"{conv.name}.weight", weight.astype(np.float64) * per_output),
        (f"{conv.name}.bias", bias.astype(np.float64) * affine.scale + affine.shift),
    ):
        array = values.astype(weight.dtype)
        array.flags.writeable = False
        yield gs.Constant(name, array)
