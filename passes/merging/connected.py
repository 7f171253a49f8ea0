"""Islands, the connected parts of the groups of a plan, and the values that cross their borders, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heterocc.passes.graph import Numbers
from heterocc.passes.sent import Sent


@dataclass(frozen=True, slots=True)
class Islands:
    """The islands of a plan whose values cross a border of groups; blocks are numbers.

    `turn`, `first` and `size` have the group, the first block and the number of blocks of each island; its blocks are
    `blocks[starts[i]:starts[i + 1]]`. The entries `ends[i]` to `ends[i + 1]` of the other arrays are the values that it
    exchanges with other islands: the number of each in `value`, whether the island `writes` it, and how many blocks of
    the island read it in `reads`.
    """

    turn: Numbers
    first: Numbers
    size: Numbers
    blocks: Numbers
    starts: Numbers
    ends: Numbers
    value: Numbers
    writes: npt.NDArray[np.bool_]
    reads: Numbers

    def borders(self, chosen: Numbers) -> tuple[Numbers, Numbers]:
        """The entries of values that the chosen islands exchange, and the place of the island of each in `chosen`."""
        return _ranges(self.ends, chosen)

    def members(self, chosen: Numbers) -> tuple[Numbers, Numbers]:
        """The blocks of the chosen islands, each in ascending order, and the place of their island in `chosen`."""
        places, island = _ranges(self.starts, chosen)
        return self.blocks[places], island

    @classmethod
    def of(cls, turns: Numbers, edges: tuple[Numbers, Numbers], sent: Sent) -> Islands:
        """The islands of the groups that `turns` gives the blocks; `edges` are those between blocks."""
        sources, readers = edges
        same = turns[sources] == turns[readers]
        root = components(len(turns), sources[same], readers[same])
        crosses = sent.any_reader(turns[sent.readers] != turns[sent.producer][sent.value])
        values, entries = np.flatnonzero(crosses), np.flatnonzero(crosses[sent.value])
        count = max(len(sent.producer), 1)
        # An island and one of its values as one integer, so that they can be sorted and repetitions be dropped.
        written = root[sent.producer[values]] * count + values
        read = np.sort(root[sent.readers[entries]] * count + sent.value[entries])
        pairs = np.sort(np.concatenate([written, read]))
        pairs = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]
        owner, value = np.divmod(pairs, count)
        roots = owner[np.flatnonzero(np.diff(owner, prepend=-1))]

        number = np.full(len(turns), -1, np.int64)
        number[roots] = np.arange(len(roots))
        island_of = number[root]
        blocks = np.argsort(island_of, kind="stable")[np.count_nonzero(island_of < 0) :]
        size = np.bincount(island_of[blocks], minlength=len(roots))
        return cls(
            turns[roots],
            roots,
            size,
            blocks,
            np.append(0, np.cumsum(size)),
            np.searchsorted(owner, np.append(roots, len(turns))),
            value,
            root[sent.producer[value]] == owner,
            np.searchsorted(read, pairs, side="right") - np.searchsorted(read, pairs),
        )


def components(count: int, sources: Numbers, readers: Numbers) -> Numbers:
    """For each of `count` blocks the first one that edges, in either direction, connect it with.

    All sets of connected blocks are joined to a neighbour at once, in rounds: Y. Shiloach and U. Vishkin, "An O(log n)
    parallel connectivity algorithm" (1982).
    """
    found = np.arange(count)
    while len(sources):
        one, other = found[sources], found[readers]
        apart = one != other
        sources, readers, one, other = sources[apart], readers[apart], one[apart], other[apart]
        np.minimum.at(found, np.maximum(one, other), np.minimum(one, other))
        found = followed(found)
    return found


def followed(found: Numbers) -> Numbers:
    """The end of the chain that starts at each block."""
    while True:
        following = found[found]
        if (following == found).all():
            return found
        found = following


def _ranges(ends: Numbers, chosen: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers of the chosen ranges, where range i goes from `ends[i]` to `ends[i + 1]`, and the range of each."""
    lengths = ends[chosen + 1] - ends[chosen]
    which = np.repeat(np.arange(len(chosen)), lengths)
    return np.arange(len(which)) + (ends[chosen] - np.cumsum(lengths) + lengths)[which], which
