"""A model of several nodes under construction: a node is kept if ONNX Runtime runs it on the arrays that are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from heterocc.runtime.execute.narrow import from_ort, ort_value
from heterocc.runtime.execute.ort_session import open_session, session_options
from tests.hostile.cases import IR_VERSION, Array, Base, _elem_type

MOST_ELEMENTS = 1 << 12
"""Of a value: larger ones take time and show nothing more."""


@dataclass
class Mixture:
    """A model under construction. `values` are arrays by name; those in `exact` have no rounding errors."""

    rng: np.random.Generator
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    domains: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)
    operators: list[str] = field(default_factory=list)
    count: int = 0

    def pick(self, options: Sequence[Any]) -> Any:
        """One of these."""
        return options[int(self.rng.integers(len(options)))]

    def name(self, prefix: str) -> str:
        """A name that is not in use."""
        self.count += 1
        return f"{prefix}_{self.count}"

    def constant(self, array: Array) -> str:
        """One more constant; its name."""
        name = self.name("c")
        self.constants[name] = array
        return name

    def integers(self, *values: int) -> str:
        """A constant vector of int64; its name."""
        return self.constant(np.array(values, np.int64))

    def input(self, array: Array) -> str:
        """One more input; its name."""
        name = self.name("x")
        self.inputs[name] = self.values[name] = array
        self.exact.add(name)
        return name

    def add(self, op_type: str, inputs: Sequence[str], *, exact: bool, **attributes: Any) -> str | None:
        """Add a node, if ONNX Runtime runs it; the name of its first result."""
        node = helper.make_node(op_type, list(inputs), [self.name("v")], **attributes)
        given = {n: a for n in inputs if n for a in [self.values.get(n, self.constants.get(n))] if a is not None}
        found = run_nodes([node], given, self.opset)
        if found is None or found[0].size > MOST_ELEMENTS:
            return None
        self.nodes.append(node)
        self.operators.append(op_type)
        self.values[node.output[0]] = found[0]
        if exact and all(n in self.exact or n in self.constants for n in given):
            self.exact.add(node.output[0])
        return str(node.output[0])

    def base(self, name: str, version: int) -> Base:
        """The model, whose results are the values that no node reads, and one other."""
        read = {n for node in self.nodes for n in _reads(node)}
        written = [o for node in self.nodes for o in node.output if o]
        ends = [n for n in written if n not in read]
        inner = [n for n in written if n in read and n in self.values]
        if inner and self.rng.random() < 0.3:
            ends.append(self.pick(inner))
        feed = {n: a for n, a in self.inputs.items() if n in read}
        info = [helper.make_tensor_value_info(n, _elem_type(a.dtype), a.shape) for n, a in feed.items()]
        out = [helper.make_tensor_value_info(n, _elem_type(self.values[n].dtype), None) for n in ends]
        constants = [numpy_helper.from_array(a, n) for n, a in self.constants.items() if n in read]
        graph = helper.make_graph(self.nodes, "g", info, out, constants)
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(*d) for d in self.domains.items())]
        model = helper.make_model(graph, opset_imports=imports, ir_version=version)
        return Base(name, "+".join(dict.fromkeys(self.operators)), model, feed)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from _reads(inner)
            yield from (end.name for end in body.output)


def run_nodes(nodes: Sequence[onnx.NodeProto], given: dict[str, Array], opset: int) -> list[Array] | None:
    """The results of some nodes in ONNX Runtime; None if it refuses them, or if a result is not a tensor."""
    written = [o for node in nodes for o in node.output if o]
    info = [helper.make_tensor_value_info(n, _elem_type(a.dtype), a.shape) for n, a in given.items()]
    graph = helper.make_graph(list(nodes), "g", info, [onnx.ValueInfoProto(name=n) for n in written])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    try:
        session = open_session(model.SerializeToString(), session_options(threads=1, optimise="none"))
        found = session.run_with_ort_values(None, {n: ort_value(a) for n, a in given.items()})
        arrays = [from_ort(v) for v in found]
    except Exception:
        return None
    return arrays if all(isinstance(a, np.ndarray) for a in arrays) else None


def draw(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Numbers of a dtype: small ones, from a few texts, and seldom one at the limits of integers."""
    if dtype in ("str", "object") or dtype.startswith("str"):
        return np.array([f"t{v}" if v else "" for v in rng.integers(0, 5, shape).flat], object).reshape(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        limits = np.iinfo(dtype)
        drawn = rng.integers(max(-5, limits.min), 6, shape)
        return np.asarray(drawn).astype(dtype)
    return np.asarray(rng.uniform(-2, 2, shape)).astype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
