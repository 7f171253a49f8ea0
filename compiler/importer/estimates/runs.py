"""An estimate of one run of a model: its operations, and the memory of its values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import onnx

from heterocc.compiler.importer.estimates.work import flops
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


def _known(value: Value, unknown: int) -> Value:
    if value.shape is None or value.is_static:
        return value
    return replace(value, shape=tuple(d if isinstance(d, int) else unknown for d in value.shape))


def _nbytes(value: Value) -> int:
    return value.nbytes if value.is_static and value.dtype in DTYPE_BYTES else 0
