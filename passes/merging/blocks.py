"""The graph after contraction of nodes that run together in every plan of least partitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterocc.passes.graph import Graph, Numbers
from heterocc.passes.merging.connected import followed


@dataclass(frozen=True, slots=True)
class Blocks:
    """The graph after contraction of nodes that only read from one block of their device.

    `block_of` has the block of each node, `firsts` the first node of each block, which alone reads from others,
    `labels` the device of each block, and `sources` the blocks that it reads from, in ascending order; `edges` are
    these pairs of a source and a reader as arrays, sorted by reader. Blocks are numbered by their first nodes, which is
    an order in which they can run.
    """

    block_of: Numbers
    firsts: Numbers
    labels: list[int]
    sources: list[tuple[int, ...]]
    edges: tuple[Numbers, Numbers]


def contract(graph: Graph, labels: Numbers) -> Blocks:
    """The blocks of a graph with a device, as a number, for each node."""
    first_of = _first_nodes(graph, labels)
    firsts = np.flatnonzero(first_of == np.arange(len(labels)))
    number = np.full(len(labels), -1, np.int64)
    number[firsts] = np.arange(len(firsts))
    sources, readers = graph.edges
    enters = number[readers] >= 0
    # A block and one of its sources as one integer, so that they can be sorted and repetitions be dropped.
    pairs = np.sort(number[readers[enters]] * len(firsts) + number[first_of[sources[enters]]])
    pairs = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]
    into, found = np.divmod(pairs, max(len(firsts), 1))
    ends = np.cumsum(np.bincount(into, minlength=len(firsts))).tolist()
    flat = found.tolist()
    reads = [tuple(flat[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return Blocks(number[first_of], firsts, labels[firsts].tolist(), reads, (found, into))


def _first_nodes(graph: Graph, labels: Numbers) -> Numbers:
    """The first node of the block of each node.

    Nodes with one source are joined to it by arrays, others as well in rounds, while a round decides on many of them.
    """
    sources, readers = graph.edges
    count = np.bincount(readers, minlength=len(labels))
    same = labels[sources] == labels[readers]
    found = np.arange(len(labels))
    joins = same & (count[readers] == 1)
    found[readers[joins]] = sources[joins]
    found = followed(found)
    elsewhere = np.bincount(readers[~same], minlength=len(labels))
    several = (count[readers] > 1) & (elsewhere[readers] == 0)
    sources, readers = sources[several], readers[several]
    while len(readers):
        starts = np.flatnonzero(np.diff(readers, prepend=-1))
        nodes, blocks = readers[starts], found[sources]
        least = np.minimum.reduceat(blocks, starts)
        joined = least == np.maximum.reduceat(blocks, starts)
        found[nodes[joined]] = least[joined]
        found = followed(found)
        # A node that reads from two blocks whose first nodes join no other never joins one.
        may_join = np.zeros(len(found), bool)
        may_join[nodes] = True
        lowest = np.minimum.reduceat(np.where(may_join[blocks], len(found), blocks), starts)
        highest = np.maximum.reduceat(np.where(may_join[blocks], -1, blocks), starts)
        decided = joined | (lowest < highest)
        open_edges = np.repeat(~decided, np.diff(np.append(starts, len(readers))))
        sources, readers = sources[open_edges], readers[open_edges]
        if np.count_nonzero(decided) * _WORTH_A_ROUND < len(decided):
            return _joined_in_order(found, sources, readers)
    return found


_WORTH_A_ROUND = 8
"""The share of nodes, as a divisor, that a round has to decide on so that another one follows."""


def _joined_in_order(found: Numbers, sources: Numbers, readers: Numbers) -> Numbers:
    """The same for the rest of the nodes that may join a block, one after the other."""
    joined: dict[int, int] = {}
    reads: dict[int, set[int]] = {}
    for reader, block in zip(readers.tolist(), found[sources].tolist(), strict=True):
        reads.setdefault(reader, set()).add(block)
    for reader, before in reads.items():
        blocks = {joined.get(block, block) for block in before}
        if len(blocks) == 1:
            (joined[reader],) = blocks
    found[list(joined)] = list(joined.values())
    ends: Numbers = found[found]
    return ends
