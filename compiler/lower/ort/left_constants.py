"""Constants that the import has left to a run, as they are large or take long: ONNX Runtime must not compute them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx

from heterocc.compiler.importer.draft.draft import reads
from heterocc.compiler.importer.estimates.runs import node_work
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import DTYPE_BYTES, Value

LARGE = 1 << 24
"""Bytes of a result that ONNX Runtime is not to compute when it creates a session, and keep."""

LONG = 1 << 30
"""Work, in bytes as a Cost's, that ONNX Runtime is not to do when it creates a session: it has no limit of time."""


def left_constants(
    nodes: Iterable[onnx.NodeProto], constants: Collection[str], values: Mapping[str, Value]
) -> Iterator[onnx.NodeProto]:
    """The nodes that read constants alone and whose results are large, of unknown size, or long computed.

    Dequantised weights are not among them.
    """
    for node in nodes:
        names = reads(node)
        if not names or of_node(node).dequantises or not all(name in constants for name in names):
            continue
        if any(_is_large(values.get(name)) for name in node.output if name) or node_work(node, values) > LONG:
            yield node


def _is_large(value: Value | None) -> bool:
    """Whether a value may be large; those that checks add, which are none of the import's, are not."""
    return value is not None and not (value.is_static and value.dtype in DTYPE_BYTES and value.nbytes <= LARGE)


def with_left_constants(graph: onnx.GraphProto, values: Mapping[str, Value]) -> dict[str, str]:
    """Change a model so that ONNX Runtime computes such nodes in each run, and not when it creates a session.

    It takes a constant that a caller could replace for a value of the run. Returns the names of the new initializers
    with those of the ones that they repeat.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    found: dict[str, str] = {}
    for node in left_constants(graph.node, constants, values):
        place, name = next(((p, n) for p, n in enumerate(node.input) if n in constants), (None, ""))
        if place is None:
            continue
        own = f"{name}.{node.output[0]}"  # identifiers have no dots, so these names are free
        found[own] = name
        node.input[place] = own
        tensor = graph.initializer.add()
        tensor.CopyFrom(constants[name])
        tensor.name = own
        graph.input.append(onnx.helper.make_tensor_value_info(own, tensor.data_type, tensor.dims))
    # ONNX Runtime forgets an initializer that nothing reads, and then refuses its data.
    left = {v for node in graph.node for v in reads(node)} | {output.name for output in graph.output}
    for name in {*found.values()} - left:
        graph.initializer.remove(constants[name])
    return found
