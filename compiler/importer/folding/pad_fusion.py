"""Moving of zero padding into the convolution or pooling behind it, as exporters of TensorFlow and Keras write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.draft.surgery import Node, put_together, take_apart
from heterocc.compiler.operators.table import of_node


def fuse_pads(draft: Draft) -> bool:
    """Add the widths of Pad nodes to `pads` of the windows that read them; return whether any was moved.

    This is done for zeros around the spatial axes, narrower than the window, if every reader of the Pad is a Conv, an
    AveragePool or a MaxPool of values that cannot be negative, and has the Pad's affinity. The readers keep their names
    and get the Pad's origin.
    """
    padded = {node.output[0] for node in draft.graph.node if node.op_type == "Pad" and not node.domain}
    if all(padded.isdisjoint(node.input) for node in draft.graph.node if of_node(node).window):
        return False
    graph = take_apart(draft)
    windows = {node for node in graph.nodes if of_node(node.proto).window}
    outputs = {o.name for o in graph.outputs}
    moved = False
    for pad in graph.nodes:
        if pad.op != "Pad" or pad.domain or pad.outputs[0].name in outputs:
            continue
        widths = _widths(pad)
        readers = pad.outputs[0].outputs
        if widths is None or not readers or not windows.issuperset(readers):
            continue
        sums = {reader: _pads(reader, pad, widths, draft) for reader in readers}
        settled = {reader: pads for reader, pads in sums.items() if pads is not None}
        if len(settled) < len(sums):
            continue
        for reader, pads in settled.items():
            _set_pads(reader, pads)
            reader.inputs[0] = pad.inputs[0]
            draft.origins[reader.name] = (*draft.origins.get(reader.name, ()), *draft.origins.get(pad.name, ()))
        pad.inputs.clear()
        pad.outputs.clear()
        moved = True
    if moved:
        put_together(graph, draft)
    return moved


def _attributes(node: Node) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.proto.attribute}


def _widths(pad: Node) -> Mapping[int, tuple[int, int]] | None:
    """Widths before and after each axis that a Pad extends by zeros, by the axis; None if they are not such.

    Axes may be negative.
    """
    attributes = _attributes(pad)
    inputs = [t for t in pad.inputs[1:] if not t.is_empty()]
    if attributes.get("mode", b"constant") != b"constant" or attributes.get("value", 0.0) != 0.0:
        return None
    if not all(isinstance(t, gs.Constant) for t in inputs):
        return None
    given = [t.values if not t.is_empty() else None for t in pad.inputs[1:]]
    pads, value, axes = ([*given, None, None, None])[:3] if given else (attributes.get("pads"), None, None)
    if pads is None or (value is not None and np.any(value != 0)):
        return None
    begins, ends = np.asarray(pads, np.int64).reshape(2, -1).tolist()
    where = range(len(begins)) if axes is None else np.asarray(axes).reshape(-1).tolist()
    return {axis: (b, e) for axis, b, e in zip(where, begins, ends, strict=True) if b or e}


def _pads(reader: Node, pad: Node, widths: Mapping[int, tuple[int, int]], draft: Draft) -> list[int] | None:
    """The reader's `pads` with the widths added, or None if the result would differ."""
    attributes = _attributes(reader)
    window = _window(reader, attributes)
    if window is None or reader.inputs[0] is not pad.outputs[0] or pad.outputs[0] in reader.inputs[1:]:
        return None
    if draft.affinity.get(reader.name) != draft.affinity.get(pad.name):
        return None
    rank = len(window)
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    own = [0] * (2 * rank) if attributes.get("auto_pad") == b"VALID" else attributes.get("pads", [0] * (2 * rank))
    if not _keeps_result(reader, pad, attributes, own):
        return None
    sums = list(own)
    for axis, (begin, end) in widths.items():
        place = (axis if axis >= 0 else axis + rank + 2) - 2
        if not 0 <= place < rank:
            return None
        sums[place] += begin
        sums[place + rank] += end
    if any(not 0 <= width < window[i % rank] for i, width in enumerate(sums)):
        return None
    return sums


def _window(reader: Node, attributes: Mapping[str, Any]) -> list[int] | None:
    """Size of the reader's window along each spatial axis, dilation included; None if it is not known."""
    if of_node(reader.proto).window == "product":
        if len(reader.inputs) < 2 or not isinstance(reader.inputs[1], gs.Constant):
            return None
        sizes: Sequence[int] = reader.inputs[1].shape[2:]
    else:
        sizes = attributes["kernel_shape"]
    dilations = attributes.get("dilations", [1] * len(sizes))
    return [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]


def _keeps_result(reader: Node, pad: Node, attributes: Mapping[str, Any], own: Sequence[int]) -> bool:
    """Whether zeros in front of a window and its own padding mean the same."""
    if of_node(reader.proto).window == "product":
        return True
    if attributes.get("ceil_mode", 0) or any(d != 1 for d in attributes.get("dilations", [])):
        return False
    if of_node(reader.proto).window == "mean":
        return not any(own) or bool(attributes.get("count_include_pad", 0))
    # the largest element is not one of the padding, which is the same as zeros among values that are not negative
    written = pad.inputs[0].inputs
    return len(reader.outputs) == 1 and not any(own) and bool(written) and _is_not_negative(written[0])


def _is_not_negative(node: Node) -> bool:
    if node.op == "Clip" and not node.domain:
        low = node.inputs[1] if len(node.inputs) > 1 else None
        least = low.values if isinstance(low, gs.Constant) else _attributes(node).get("min", -1.0)
        return bool(np.all(np.asarray(least) >= 0))
    return of_node(node.proto).positive


def _set_pads(reader: Node, pads: list[int]) -> None:
    replaced = {"pads", "auto_pad"}
    changed = [helper.make_attribute("pads", pads)]
    if of_node(reader.proto).window == "mean":
        replaced.add("count_include_pad")
        changed.append(helper.make_attribute("count_include_pad", 1))
    kept = [a for a in reader.proto.attribute if a.name not in replaced]
    proto = onnx.NodeProto()
    proto.CopyFrom(reader.proto)
    del proto.attribute[:]
    proto.attribute.extend([*kept, *changed])
    reader.proto = proto
