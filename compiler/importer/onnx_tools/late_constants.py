"""The order of a model's nodes in which ONNX Runtime holds least of what they compute from weights alone.

Its own order computes all of this first: float32 of all weights in 4 bits, say, eight times as many bytes as the model.
"""

from __future__ import annotations

from typing import Any

import onnx

from heterocc.compiler.importer.draft.draft import reads, set_nodes
from heterocc.runtime.execute.ort_session import onnxruntime_package


def compute_constants_late(model: onnx.ModelProto, options: Any) -> None:
    """Change a model, and the options of its session: nodes that read only weights run right before their readers."""
    graph = model.graph
    nodes = list(graph.node)
    constants = {i.name for i in graph.initializer}.difference(i.name for i in graph.input)
    late: dict[str, int] = {}  # the number of the node, by result
    for number, node in enumerate(nodes):
        if constants.issuperset(reads(node)):
            constants.update(node.output)
            late.update((name, number) for name in node.output)
    numbers = frozenset(late.values())
    ordered: dict[int, onnx.NodeProto] = {}
    for last in [n for n in range(len(nodes)) if n not in numbers] + sorted(numbers):
        waiting = [last]
        while waiting:
            number = waiting[-1]
            needed = {late[name] for name in reads(nodes[number]) if name in late}.difference(ordered, [number])
            waiting += sorted(needed, reverse=True)
            if not needed:
                ordered[waiting.pop()] = nodes[number]
    set_nodes(graph, ordered.values())
    options.execution_order = onnxruntime_package().ExecutionOrder.PRIORITY_BASED
