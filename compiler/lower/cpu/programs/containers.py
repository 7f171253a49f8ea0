"""The steps of operators on sequences and optional values: calls of the runtime's own functions.

Registers hold a sequence as an array of tensors, and an optional value as what it holds, or nothing. The functions
share tensors, so that a sequence that grows in a loop does not copy them.
"""

from __future__ import annotations

import onnx

from heterocc.artifacts.dtypes import container
from heterocc.compiler.importer.symbols.containers import touches_containers
from heterocc.compiler.lower.cpu.programs.functions import (
    AT,
    CHECK,
    GET,
    HAS,
    JOIN,
    LENGTH,
    NOTHING,
    OWN,
    TUPLE,
    fixed_sizes,
)
from heterocc.compiler.lower.cpu.programs.program_builder import Builder
from heterocc.compiler.lower.cpu.programs.steps import Copy, Invoke, Step
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
        for name in (*filter(None, node.input), *node.output):
            self._require(node, name)
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
        labelled = function not in (TUPLE, NOTHING, LENGTH, HAS)
        steps.append(Invoke(function, arguments, node.output[0], text if labelled else ""))
        # Of a tensor from a sequence only the run knows that it is as expected.
        if function in (AT, GET, JOIN) and node.output[0] not in b.symbols.elements:
            self._check(node.output[0], text, steps)

    def _require(self, node: onnx.NodeProto, name: str) -> None:
        b = self.b
        value = b.values.get(name)
        kind = None if value is None else container(value.dtype)
        dtype = None if value is None else value.dtype if kind is None else kind.dtype
        if value is None or (kind is None and value.is_opaque):
            raise b.refuse(node, f"the type of '{name}' is {'unknown' if value is None else value.dtype}")
        if dtype not in b.job.device.dtypes:
            raise b.refuse(node, f"'{name}' is {value.dtype}, which {b.job.device.name} does not compute")
        if kind is not None:
            if name not in b.symbols.elements:
                raise b.refuse(node, f"what '{name}' holds is not known")
        elif value.shape is None or None in value.shape:
            raise b.refuse(node, f"the rank or a size of '{name}' is not known")

    def _check(self, name: str, text: str, steps: list[Step]) -> None:
        """Check a tensor that the program did not compute: code relies on its rank and its fixed sizes."""
        expected = fixed_sizes(self.b.values[name].shape or ())
        steps.append(Invoke(CHECK, (name, expected), None, text))
