"""An estimate of one run of a model: its operations, and the memory of its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import onnx

from heterocc.compiler.importer.estimates.work import Size, flops, node_cost
from heterocc.passes.graph import DTYPE_BYTES, Graph, Value


@dataclass(frozen=True, slots=True)
class Work:
    """The floating-point operations of a run, and the most bytes of values that are needed at the same time."""

    flops: float
    nbytes: int

    def within(self, most: Work) -> bool:
        """Whether neither exceeds that of another run."""
        return self.flops <= most.flops and self.nbytes <= most.nbytes


MOST_WORK = Work(2e10, 1 << 27)
"""The most work of a run on drawn inputs: a fraction of a second, and 128 MiB of values, which reference, check and
comparison hold several times."""


def work_of(graph: Graph, protos: Iterable[onnx.NodeProto], unknown: int) -> Work:
    """The work of a graph's nodes in their order; `unknown` stands for sizes that are known only in a run.

    The bodies of control flow count as nothing.
    """
    values = {name: _known(value, unknown) for name, value in graph.values.items()}
    nodes = {proto.name: proto for proto in protos}
    last = {name: node.name for node in graph.nodes for name in (*node.inputs, *node.outputs)}
    last.update(dict.fromkeys((*graph.inputs, *graph.outputs), ""))
    held = sum(_nbytes(values[name]) for name in graph.inputs)
    most, operations = held, 0.0
    for node in graph.nodes:
        operations += flops(nodes[node.name], values)
        held += sum(_nbytes(values[name]) for name in node.outputs)
        most = max(most, held)
        done = {name for name in (*node.inputs, *node.outputs) if last[name] == node.name}
        held -= sum(_nbytes(values[name]) for name in done if name not in graph.constants)
    return Work(operations, most)


def constant_work(graph: Graph, protos: Iterable[onnx.NodeProto]) -> int:
    """The work, in bytes as a Cost's, of what a run computes from constants alone: the import has left it to the run.

    Nodes whose sizes are unknown before a run count as nothing, and so do the bodies of control flow.
    """
    constant, found = set(graph.constants), 0
    by_name = {proto.name: proto for proto in protos}
    for node in graph.nodes:
        if constant.issuperset(node.inputs):
            constant.update(node.outputs)
            found += node_work(by_name[node.name], graph.values)
    return found


def node_work(proto: onnx.NodeProto, values: Mapping[str, Value]) -> int:
    """The work of a node, in bytes as a Cost's; values of unknown size count as nothing."""
    inputs, outputs = (
        [Size(_nbytes(values[name])) for name in names if name in values] for names in (proto.input, proto.output)
    )
    return node_cost(proto, values, inputs, outputs).work


def _known(value: Value, unknown: int) -> Value:
    if value.shape is None or value.is_static:
        return value
    return replace(value, shape=tuple(d if isinstance(d, int) else unknown for d in value.shape))


def _nbytes(value: Value) -> int:
    return value.nbytes if value.is_static and value.dtype in DTYPE_BYTES else 0
