"""The graph while sequences are opened: what is known of its values, and the new nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from heterocc.compiler.importer.draft.constants import constant_node, constants_within
from heterocc.compiler.importer.draft.draft import Draft, graphs_of
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.importer.operators.functions import types_of
from heterocc.compiler.importer.symbols.derivation import values_of_all_levels
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.containers import elements_of
from heterocc.compiler.symbolic.opened import Opened
from heterocc.passes.graph import Value


class Writer:
    """Writes nodes that take the place of others.

    `known` has what is known of sequences and optional values by name, `nodes` the nodes written so far of the graph or
    body at hand, `changed` whether a node was replaced that is not merely unused.
    """

    def __init__(self, draft: Draft, values: Mapping[str, Value], namer: Namer) -> None:
        self.draft = draft
        self.values = values
        self.namer = namer
        self.types = types_of(draft)
        self.known: dict[str, Opened] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.changed = False
        self._origin = ""
        self._constants: dict[str, np.ndarray[Any, Any]] = dict(draft.weights)
        self._fills: dict[str, int] = {}
        self._symbols = Symbols(())
        self._inner: Mapping[str, Value] | None = None
        for graph in graphs_of(draft.graph):
            self.note_constants(graph)

    def note_constants(self, graph: onnx.GraphProto) -> None:
        """Make the constants of a body known."""
        self._constants.update(constants_within(graph))
        for node in graph.node:
            if of_node(node).fills:
                fill = next((numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"), np.zeros(1))
                if fill.dtype.kind in "iu":
                    self._fills[node.output[0]] = int(fill[0])

    def begin(self, node: onnx.NodeProto) -> None:
        """Name the node whose place the next ones take."""
        self._origin = node.name

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """The constant of this name; None if there is none."""
        return self._constants.get(name)

    def number(self, name: str) -> int | None:
        """The integer that a constant of one element holds; None for other values."""
        array = self._constants.get(name)
        return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def fill(self, name: str) -> int | None:
        """The integer that all elements of a value are; None if that is not known."""
        return self._fills.get(name)

    def shape(self, name: str) -> tuple[int | str | None, ...] | None:
        """The shape of a value; None if its rank is not known."""
        value = self.values.get(name)
        return None if value is None or value.is_opaque else value.shape

    def is_fixed(self, name: str) -> bool:
        """Whether the shape of a value, at any level of the original graph, follows from the model's inputs."""
        if self._inner is None:
            draft = self.draft
            held = ((info.name, elements_of(info.type)) for info in draft.graph.input)
            given = {found: elements for found, elements in held if elements is not None}
            self._symbols = draft.symbols.copy() if draft.symbols is not None else Symbols(())
            self._symbols.given = given
            self._inner = values_of_all_levels(draft.graph.node, self.values, draft.weights, draft.opset, self._symbols)
        value = self._inner.get(name)
        sizes = None if value is None else self._symbols.shape_of(value)
        names = set(self._symbols.names)
        return sizes is not None and all(size is not None and size.names <= names for size in sizes)

    def fresh(self, hint: str) -> str:
        """A new name of a value."""
        return self.namer.give(f"{self._origin}_{hint}", "v")

    def stack(self, names: Sequence[str], axis: int, output: str = "") -> str:
        """Write tensors of one shape as one, along a new axis."""
        axes = self.integers(axis)
        rows = [self.write("unsqueeze = Unsqueeze (value, axes)", value=name, axes=axes) for name in names]
        return self.add("Concat", rows, output, axis=axis)

    def sequence(self, names: Sequence[str], output: str) -> None:
        """Write a sequence of tensors."""
        self.add_all("SequenceConstruct" if names else "SequenceEmpty", names, [output])

    def add(self, op_type: str, inputs: Sequence[str], output: str = "", hint: str = "", **attributes: object) -> str:
        """Write a node of one result, whose name it returns: `output`, or a new one."""
        name = output or self.fresh(hint or op_type.lower())
        self.add_all(op_type, inputs, [name], **attributes)
        return name

    def write(self, text: str, output: str = "", **given: str | int | Sequence[int]) -> str:
        """Write the nodes of a text, and return the name of the last one's result: `output`, or a new one.

        `given` are values of the text: names, integers and lists of these.
        """
        names = {n: v if isinstance(v, str) else self.constant(np.array(v, np.int64)) for n, v in given.items()}
        if output:
            names["output"] = output
        made = written(text, names, self.fresh)
        for node in made:
            self.put(node)
        return str(made[-1].output[0])

    def copy(self, name: str, output: str = "") -> str:
        """Write a copy of a value."""
        return self.write("output = Identity (value)", output or self.fresh("identity"), value=name)

    def add_all(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> None:
        """Write a node of several results."""
        self.put(helper.make_node(op_type, inputs, outputs, **attributes))

    def put(self, node: onnx.NodeProto) -> None:
        """Write a node under a new name, with the origin and the affinity of the replaced one."""
        self.adopt(node)
        self.nodes.append(node)

    def adopt(self, node: onnx.NodeProto) -> None:
        """Give a node a new name, with the origin and the affinity of the replaced one."""
        node.name = self.namer.give(f"{self._origin}_{node.op_type}", "n")
        self.draft.origins[node.name] = self.draft.origins.get(self._origin, ())
        if self._origin in self.draft.affinity:
            self.draft.affinity[node.name] = self.draft.affinity[self._origin]

    def returned(self, body: onnx.GraphProto, name: str, kind: int) -> onnx.ValueInfoProto:
        """Return an output for a body that is this value, of this element type."""
        outer, self.nodes = self.nodes, []
        end = self.copy(name)
        body.node.extend(self.nodes)
        self.nodes = outer
        info = onnx.ValueInfoProto(name=end)
        info.type.tensor_type.elem_type = kind
        return info

    def constant(self, array: np.ndarray[Any, Any], output: str = "") -> str:
        """Write a constant; returns its name."""
        name = output or self.fresh("constant")
        self._constants[name] = array
        self.put(constant_node(name, array))
        return name

    def integers(self, *numbers: int) -> str:
        """Write a constant vector of integers."""
        return self.constant(np.array(numbers, np.int64))
