"""Positions of nodes for drawing a graph: layers by the longest path, ordered within a layer by their neighbours.

The method is Sugiyama's, without nodes for long edges: K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual
understanding of hierarchical system structures" (1981).
"""

from __future__ import annotations

from collections.abc import Sequence

from heterocc.passes.graph import Graph

SWEEPS = 4
"""Orders are improved this many times, down and up in turn."""


def positions(graph: Graph) -> list[tuple[float, int]]:
    """The column and the layer of each node in graph order; nodes of a layer are at least 1 column apart.

    Takes time linear in nodes and edges but for the sorting of layers. Equal graphs give equal places.
    """
    sources = graph.sources
    readers: list[list[int]] = [[] for _ in sources]
    layer: list[int] = []
    for node, reads in enumerate(sources):
        layer.append(1 + max((layer[s] for s in reads), default=-1))
        for source in reads:
            readers[source].append(node)
    # A node without inputs stands just above its first reader, not at the top.
    for node in reversed(range(len(sources))):
        if not sources[node] and readers[node]:
            layer[node] = min(layer[r] for r in readers[node]) - 1
    layers: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, number in enumerate(layer):
        layers[number].append(node)
    column = [0.0] * len(sources)
    for members in layers:
        for place, node in enumerate(members):
            column[node] = place - (len(members) - 1) / 2
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near: Sequence[Sequence[int]] = sources if down else readers
        for members in layers if down else reversed(layers):
            _spread(members, near, column)
    return list(zip(column, layer, strict=True))


def _spread(members: list[int], near: Sequence[Sequence[int]], column: list[float]) -> None:
    """Move the nodes of a layer to the mean column of their neighbours, in that order and at least 1 apart."""
    wanted = {n: sum(column[o] for o in near[n]) / len(near[n]) if near[n] else column[n] for n in members}
    members.sort(key=lambda n: (wanted[n], n))
    last = -float("inf")
    placed = []
    for node in members:
        last = max(wanted[node], last + 1)
        placed.append(last)
    shift = sum(p - wanted[n] for p, n in zip(placed, members, strict=True)) / max(len(members), 1)
    for node, place in zip(members, placed, strict=True):
        column[node] = place - shift
