"""The models that stand for a model in ONNX Runtime: itself, or one that computes the same with other operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import helper, inliner

BATCHED: Mapping[str, tuple[int, ...]] = {"GRU": (0, 5), "LSTM": (0, 5, 6), "RNN": (0, 5)}
"""By recurrent operator: the inputs whose first axis is the batch with layout 1, and the second with layout 0."""

VERSIONS = (26, 23, 21, 17, 13)
"""Operator sets that a model is tried with. An operator's newest version often only has types that others lack."""


def references(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The model, then models that compute the same and that ONNX Runtime may run where it does not run the first."""
    yield model
    written = _with_the_batch_second(model)
    for found in (written, *_expanded(written)):
        yield found
        version = next((o.version for o in found.opset_import if not o.domain), 0)
        for older in VERSIONS:
            if older < version:
                changed = onnx.ModelProto()
                changed.CopyFrom(found)
                for imported in changed.opset_import:
                    if not imported.domain:
                        imported.version = older
                yield changed


def _expanded(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The model with the definitions of all operators that ONNX defines as functions, if ONNX can write them."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    given = {end.name for end in typed.graph.input}
    # The inliner asks for the types of constants, too.
    typed.graph.input.extend(
        helper.make_tensor_value_info(c.name, c.data_type, c.dims)
        for c in typed.graph.initializer
        if c.name not in given
    )
    try:
        found = inliner.inline_selected_functions(typed, [], exclude=True, inline_schema_functions=True)
    except Exception:
        return
    assert isinstance(found, onnx.ModelProto)
    kept = [end for end in found.graph.input if end.name in given]
    del found.graph.input[:]
    found.graph.input.extend(kept)
    yield found


def _with_the_batch_second(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with layout 0 for its recurrent layers, as ONNX Runtime requires it."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes = list(changed.graph.node)
    del changed.graph.node[:]
    for node in nodes:
        layout = next((a for a in node.attribute if a.name == "layout" and a.i == 1), None)
        if layout is None or node.op_type not in BATCHED:
            changed.graph.node.append(node)
            continue
        node.attribute.remove(layout)
        after = []
        for place in BATCHED[node.op_type]:
            if place < len(node.input) and node.input[place]:
                name = f"{node.input[place]}_{place}_batch_second"
                changed.graph.node.append(helper.make_node("Transpose", [node.input[place]], [name], perm=[1, 0, 2]))
                node.input[place] = name
        for place, name in enumerate(node.output):
            if name:
                node.output[place] = f"{name}_batch_second"
                after.append(
                    helper.make_node(
                        "Transpose", [node.output[place]], [name], perm=[1, 0, 2] if place else [2, 0, 1, 3]
                    )
                )
        changed.graph.node.extend([node, *after])
    return changed
