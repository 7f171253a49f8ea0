"""The order of nodes: each follows the nodes whose results it reads."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.draft import bodies, reads, set_nodes

_SHOWN = 8
"""Names that the text of a cycle shows; the middle of a longer one is left out."""


def sort_nodes(graph: onnx.GraphProto, where: str) -> None:
    """Order the nodes so that each comes after what it reads, changing the given order as little as possible.

    Raises InvalidGraphError when nodes form a cycle; it names them, each before one that reads its result. A value
    that nobody writes is left for the checker to name.
    """
    for node in graph.node:
        for body in bodies(node):
            sort_nodes(body, where)
    producer = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
    needs = [[producer[name] for name in reads(node) if name in producer] for node in graph.node]
    if all(source < index for index, sources in enumerate(needs) for source in sources):
        return
    set_nodes(graph, [graph.node[i] for i in _order(graph, needs, where)])


def _order(graph: onnx.GraphProto, needs: Sequence[Sequence[int]], where: str) -> list[int]:
    """Indices of the nodes: what a node needs comes just before it, where it does not stand before it already."""
    import networkx as nx  # here: it takes 0.1 s, and the nodes of most models are in order

    links = nx.DiGraph()
    links.add_nodes_from(range(len(needs)))
    links.add_edges_from((index, source) for index, sources in enumerate(needs) for source in sources)
    order = list(nx.dfs_postorder_nodes(links))
    place = {index: position for position, index in enumerate(order)}
    # After a depth-first search, an edge to a node that is finished later closes a cycle.
    closing = next(((index, source) for index, source in links.edges if place[source] >= place[index]), None)
    if closing is not None:
        index, source = closing
        cycle = nx.shortest_path(links, source, index)[::-1]
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
