"""The values that nodes exchange, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heterocc.passes.graph import Graph

Numbers = npt.NDArray[np.int64]


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
        writers = graph.writers
        number: dict[str, int] = {}
        read: list[int] = []
        by: list[int] = []
        for place, node in enumerate(graph.nodes):
            for value in node.inputs:
                if writers[value] >= 0:
                    read.append(number.setdefault(value, len(number)))
                    by.append(place)
        order = np.argsort(np.array(read, np.int64), kind="stable")
        values, readers = np.array(read, np.int64)[order], np.array(by, np.int64)[order]
        if len(values):
            first = np.append(True, (values[1:] != values[:-1]) | (readers[1:] != readers[:-1]))
            values, readers = values[first], readers[first]  # a node may read a value several times
        counts = np.bincount(values, minlength=len(number))
        known = graph.values
        return cls(
            np.array([writers[v] for v in number], np.int64),
            np.array([known[v].nbytes for v in number], float),
            np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64),
            readers,
            values,
        )

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
