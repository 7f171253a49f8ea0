"""Topological order of nodes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.depth_first import depth_first
from heterocc.compiler.importer.draft.draft import bodies, reads, set_nodes

_SHOWN = 8
"""The number of names in the text of a cycle; the middle of a longer cycle is omitted."""


def sort_nodes(graph: onnx.GraphProto, where: str) -> None:
    """Sort the nodes topologically, changing the given order as little as possible.

    Raises InvalidGraphError with the names of the nodes, in order, if nodes form a cycle. Values that are not written
    are ignored; the checker reports them.
    """
    for node in graph.node:
        for body in bodies(node):
            sort_nodes(body, where)
    if _is_sorted(graph):
        return
    producer = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
    needs = [[producer[name] for name in reads(node) if name in producer] for node in graph.node]
    set_nodes(graph, [graph.node[i] for i in _order(graph, needs, where)])


def _is_sorted(graph: onnx.GraphProto) -> bool:
    """Whether no node reads a value that it or a later node writes."""
    later: set[str] = set()
    for node in reversed(graph.node):
        later.update(node.output[:])
        later.discard("")
        if later and not later.isdisjoint(reads(node)):
            return False
    return True


def _order(graph: onnx.GraphProto, needs: Sequence[Sequence[int]], where: str) -> list[int]:
    """Indices of the nodes in order: nodes that are too late are moved to just before their first reader."""
    order, cycle = depth_first(range(len(needs)), needs.__getitem__)
    if cycle:
        cycle.reverse()  # from writers to readers
        first = cycle.index(min(cycle))
        names = [graph.node[i].name or graph.node[i].op_type for i in cycle[first:] + cycle[:first]]
        raise InvalidGraphError(
            f"node '{names[0]}' is part of a cycle, it needs its own result: {cycle_text(names)}", where=where
        )
    return order


def cycle_text(names: Sequence[str]) -> str:
    """`'a' → 'b' → 'a'` for a cycle of a and b."""
    shown = [f"'{name}'" for name in (*names, names[0])]
    if len(shown) > _SHOWN + 1:
        shown[_SHOWN // 2 : -_SHOWN // 2] = [f"… {len(names) - _SHOWN + 1} more …"]
    return " → ".join(shown)
