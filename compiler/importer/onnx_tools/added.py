"""Nodes that are added to a model for ONNX Runtime, with names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from heterocc.compiler.importer.draft.constants import constant_node
from heterocc.compiler.importer.draft.names import unused
from heterocc.compiler.importer.draft.written import written

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
        return unused(text, self._taken)

    def write(self, text: str, label: str = "", **given: str | int | Sequence[int] | np.ndarray) -> str:
        """Add the nodes of a text, and return the name of the last one's result.

        `given` are values of the text: the name of one of the model, or numbers, which are constants of int64 but for
        arrays. `label` names the first node.
        """
        names = {value: found for value, found in given.items() if isinstance(found, str)}
        constants = {value: np.asarray(found) for value, found in given.items() if not isinstance(found, str)}
        made: list[onnx.NodeProto] = []
        for value, array in constants.items():
            names[value] = self.name(f"{self._stem}_{value}")
            made.append(constant_node(names[value], array))
        found = written(text, names, lambda value: self.name(f"{self._stem}_{value}"))
        if label:
            found[0].name = self.name(label)
        self.nodes += made + found
        return str(found[-1].output[0])

    def passed(self, value: str, number: str, label: str, result: str = "") -> str:
        """A value as it is; a run in which the number is 0 fails with an error that names the label.

        The shape is multiplied by the number divided by itself: ONNX Runtime fails to divide by 0, and copies no data.
        """
        old = "<broadcast = 1>" if self.version < 7 else ""
        text = f"""
            one = Div (number, number)
            shape = Shape (value)
            same = Mul {old} (shape, one)
            passed = Reshape (value, same)
        """
        ends = {"passed": result} if result else {}
        return self.write(text, label, value=value, number=number, **ends)


def replace_nodes(nodes: NODES, made: Sequence[onnx.NodeProto]) -> None:
    """Put other nodes in the place of these, some of which may be among them."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in made]
    del nodes[:]
    nodes.extend(copies)
