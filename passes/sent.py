"""The values that nodes exchange, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heterocc.passes.graph import Graph, Numbers


@dataclass(frozen=True)
class Sent:
    """The values that a node writes and nodes read, which are transferred if these are on different devices.

    `producer[i]` is the node that writes value i, `nbytes[i]` its size; the nodes that read it are
    `readers[first[i]:first[i + 1]]`, and `value` is the number of the value for each entry of `readers`. Nodes are
    positions in graph order.
    """

    producer: Numbers
    nbytes: npt.NDArray[np.float64]
    first: Numbers
    readers: Numbers
    value: Numbers

    @classmethod
    def of(cls, graph: Graph) -> Sent:
        """The values of a graph, in the order in which they are first read."""
        reads = graph.reads
        return cls.between(reads.nbytes, reads.producers, reads.readers, reads.values)

    @classmethod
    def between(cls, nbytes: npt.NDArray[np.float64], producer: Numbers, readers: Numbers, value: Numbers) -> Sent:
        """The values of these sizes and writers; `value` is sorted, and has each of their numbers at least once."""
        first = np.searchsorted(value, np.arange(len(producer) + 1)).astype(np.int64)
        return cls(producer, nbytes, first, readers, value)

    def any_reader(self, which: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """For each value whether `which`, given for each entry of `readers`, holds for any of its readers."""
        if not len(self.producer):
            return np.zeros(0, bool)
        found: npt.NDArray[np.bool_] = np.logical_or.reduceat(which, self.first[:-1])
        return found

    def count_readers(self, which: npt.NDArray[np.bool_]) -> Numbers:
        """For each value the number of its readers for which `which` holds."""
        if not len(self.producer):
            return np.zeros(0, np.int64)
        found: Numbers = np.add.reduceat(which.astype(np.int64), self.first[:-1])
        return found
