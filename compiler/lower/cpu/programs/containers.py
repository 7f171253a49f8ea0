"""The steps of operators on sequences and optional values: calls of the runtime's own functions.

Registers hold a sequence as an array of tensors, and an optional value as what it holds, or nothing. The functions
share tensors, so that a sequence that grows in a loop does not copy them.
"""

from __future__ import annotations

import onnx

from heterocc.compiler.importer.symbols.containers import touches_containers
from heterocc.compiler.lower.cpu.programs.functions import (
    AT,
    GET,
    HAS,
    JOIN,
    LENGTH,
    NOTHING,
    OWN,
    TUPLE,
)
from heterocc.compiler.lower.cpu.programs.program_builder import Builder
from heterocc.compiler.lower.cpu.programs.steps import Copy, Invoke, Step, Text
from heterocc.compiler.operators.table import of_node

_OTHERS = {"tuple": TUPLE, "nothing": NOTHING}
"""Functions that the virtual machine has."""


class Containers:
    """Adds the steps of nodes on sequences and optional values to a program."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def handles(self, node: onnx.NodeProto) -> bool:
        """Whether a node is one of these."""
        if not touches_containers(node):
            return False
        return not of_node(node).copies or node.input[0] in self.b.symbols.elements

    def add(self, node: onnx.NodeProto, steps: list[Step]) -> None:
        """Add the steps of a node, and of the check of the tensor that it takes from a sequence."""
        b = self.b
        b.require_known(node, (*filter(None, node.input), *node.output), containers=True)
        given = [b.held(name) if name else None for name in node.input]
        b.close(steps)
        text = f"{node.op_type} '{node.name}'"
        call = of_node(node).call
        if call is None:
            raise b.refuse(node, "it has no function for sequences and optional values")
        try:
            name, arguments = call(node, given, lambda value: len(b.values[value].shape or ()))
        except NotImplementedError as error:
            raise b.refuse(node, str(error)) from error
        if not name:
            steps.append(Copy([(node.output[0], arguments[0] or "")]))
            return
        function = _OTHERS.get(name, OWN + name)
        label = () if function in (TUPLE, NOTHING, LENGTH, HAS) else (Text(text),)
        steps.append(Invoke(function, (*arguments, *label), node.output[0]))
        # Of a tensor from a sequence only the run knows that it is as expected.
        if function in (AT, GET, JOIN) and node.output[0] not in b.symbols.elements:
            b.check(node.output[0], text, steps)
