"""Reads back what `print_plan` writes, so that a test sees what the text holds."""

from __future__ import annotations

import re

from heterocc.passes.affinity import Affinity
from heterocc.passes.cost import Machine
from heterocc.passes.graph import Graph
from heterocc.passes.plan import Partition, Plan

_PARTITION = re.compile(r"p(\d+) (\S+): \d+ nodes?")
_NODE = re.compile(r" {4}(\S+): (.*)")


def parse_plan(text: str, graph: Graph, machine: Machine, affinity: Affinity | None = None) -> Plan:
    """Parse the output of `print_plan` for the same graph and machine.

    Only partitions, nodes and pins are read, which determine the rest of the text. Raises ValueError if the text is not
    a plan of this graph.
    """
    partitions: list[tuple[str, list[str]]] = []
    pins: dict[str, str] = {}
    for line in text.splitlines():
        if match := _PARTITION.fullmatch(line):
            if int(match[1]) != len(partitions):
                raise ValueError(f"p{match[1]} follows {len(partitions)} partitions")
            partitions.append((match[2], []))
        elif match := _NODE.fullmatch(line):
            if not partitions:
                raise ValueError(f"node '{match[1]}' comes before the first partition")
            partitions[-1][1].append(match[1])
            if match[2].partition("  # ")[2].split(" ")[0] == "pinned":
                pins[match[1]] = partitions[-1][0]
    return Plan(graph, machine, tuple(Partition(d, tuple(n)) for d, n in partitions), pins, affinity or Affinity())
