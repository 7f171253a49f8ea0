"""Nodes that are added to a model for ONNX Runtime, with names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

NODES = Any
"""The nodes of a graph or of a function: protobuf's repeated field."""


class Added:
    """New nodes beside the one that writes the value `stem`.

    `taken` are the names of the model, and `version` is that of ONNX's own operators.
    """

    def __init__(self, taken: set[str], stem: str, version: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.version = version
        self._taken = taken
        self._stem = stem

    def name(self, text: str) -> str:
        """A name that is not in use: this one if possible."""
        while text in self._taken:
            text += "_"
        self._taken.add(text)
        return text

    def add(self, op_type: str, *inputs: str, result: str = "", label: str = "", **attributes: Any) -> str:
        """Add a node. Returns the name of its result, which is `result` if given; `label` is the node's own name."""
        name = self.name(f"{self._stem}_{op_type.lower()}")
        node_name = self.name(label) if label else name
        self.nodes.append(helper.make_node(op_type, inputs, [result or name], name=node_name, **attributes))
        return result or name

    def number(self, value: int | Sequence[int]) -> str:
        """Add a constant of int64: a scalar, or a vector."""
        numbers = [value] if isinstance(value, int) else value
        shape = [] if isinstance(value, int) else [len(value)]
        return self.add("Constant", value=helper.make_tensor("", TensorProto.INT64, shape, numbers))

    def passed(self, value: str, number: str, label: str, result: str = "") -> str:
        """A value as it is; a run in which the number is 0 fails with an error that names the label.

        The shape is multiplied by the number divided by itself: ONNX Runtime fails to divide by 0, and copies no data.
        """
        one = self.add("Div", number, number, label=label)
        old: dict[str, Any] = {"broadcast": 1} if self.version < 7 else {}
        return self.add("Reshape", value, self.add("Mul", self.add("Shape", value), one, **old), result=result)


def replace_nodes(nodes: NODES, made: Sequence[onnx.NodeProto]) -> None:
    """Put other nodes in the place of these, some of which may be among them."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in made]
    del nodes[:]
    nodes.extend(copies)
