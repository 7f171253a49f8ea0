"""Lengths of STFT's frames that ONNX Runtime's code can divide by: one of 0 ends its process."""

from __future__ import annotations

import onnx
from onnx.numpy_helper import to_array

from heterocc.compiler.importer.draft.draft import graphs_of
from heterocc.compiler.importer.onnx_tools.added import Added, replace_nodes

_LENGTH = 3
"""The number of STFT's input that is the length of a frame."""

_TOO_LONG = 2**31 - 1
"""A length that no signal has: ONNX Runtime refuses it with an error of the run."""


def has_frames(model: onnx.ModelProto) -> bool:
    """Whether a model has an STFT with a length of frames."""
    return any(_is_given(node) for graph in graphs_of(model.graph) for node in graph.node)


def _is_given(node: onnx.NodeProto) -> bool:
    return node.op_type == "STFT" and not node.domain and len(node.input) > _LENGTH and bool(node.input[_LENGTH])


def with_checked_frames(model: onnx.ModelProto) -> None:
    """Change a model so that a length of frames below 1 is one that is refused.

    ONNX Runtime 1.32 compares the step of STFT with 0, and the length with that of the signal only.
    """
    for graph in graphs_of(model.graph):
        constants = {t.name: t for t in graph.initializer}
        taken = constants.keys() | {v for n in graph.node for v in (n.name, *n.input, *n.output)}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if _is_given(node) and not _is_positive(constants.get(node.input[_LENGTH])):
                added = Added(taken, node.output[0], 17)
                node.input[_LENGTH] = added.write(_CHECKED, length=node.input[_LENGTH], one=1, far=_TOO_LONG)
                nodes += added.nodes
            nodes.append(node)
        if len(nodes) > len(graph.node):
            replace_nodes(graph.node, nodes)


_CHECKED = """
    least = CastLike (one, length)
    most = CastLike (far, length)
    short = Less (length, least)
    checked = Where (short, most, length)
"""


def _is_positive(length: onnx.TensorProto | None) -> bool:
    return length is not None and not length.external_data and bool((to_array(length) > 0).all())
