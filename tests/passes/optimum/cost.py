"""Random placement problems, and their cost computed apart from the passes, by the definition of a plan's cost."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Mapping, Sequence

from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value


def random_problem(seed: int, nodes: int, devices: int, *, overhead: bool = True) -> tuple[Graph, Machine]:
    """A graph, and a machine with stated times, refusals, links that differ by direction, and one that is missing."""
    rng = random.Random(seed)
    values = {"x": Value("x", "float32", (4,))}
    made = []
    for i in range(nodes):
        earlier = [f"v{j}" for j in range(i)]
        reads = rng.sample(earlier, min(i, rng.randint(0, 3))) or ["x"]
        values[f"v{i}"] = Value(f"v{i}", "float32", (rng.choice([1, 100, 1_000, 10_000]),))
        made.append(Node(f"n{i}", "Op", tuple(reads), (f"v{i}",)))
    read = {v for node in made for v in node.inputs}
    graph = Graph("g", tuple(made), values, ("x",), tuple(v for v in values if v not in read and v != "x"))
    names = "ABCD"[:devices]
    seconds = {d: {n.name: rng.randint(0, 50) * 1e-6 for n in made} for d in names}
    refusals = {d: {n.name: "no" for n in made if rng.random() < 0.15} for d in names[1:]}
    links: dict[tuple[str, str], Link | None] = {
        pair: Link(rng.choice([0.0, 1e-6, 1e-5]), rng.choice([1e9, 8e9])) for pair in itertools.permutations(names, 2)
    }
    if devices > 2 and rng.random() < 0.5:
        links[names[1], names[2]] = None
    overheads = [rng.choice([0.0, 2e-6, 5e-6, 2e-5]) if overhead else 0.0 for _ in names]
    machine = Machine(tuple(PlacementDevice(d, overhead=o) for d, o in zip(names, overheads, strict=True)))
    return graph, Machine(machine.devices, refusals, {}, links, None, seconds)


def placement_cost(graph: Graph, machine: Machine, device_of: Mapping[str, str]) -> float:
    """Seconds of nodes, and of one transfer for each value and device that it is sent to."""
    total = sum(machine.seconds[device_of[n.name]][n.name] for n in graph.nodes)
    for value, source in graph.producer.items():
        start = device_of[source]
        for end in {device_of[reader] for reader in graph.consumers.get(value, ())} - {start}:
            link = machine.link(start, end)
            total += math.inf if link is None else link.latency + graph.values[value].nbytes / link.bandwidth
    return total


def partitions_cost(graph: Graph, machine: Machine, device_of: Mapping[str, str]) -> float:
    """The least overhead of acyclic partitions for these devices, by all orders of single nodes (Dijkstra)."""
    nodes = graph.nodes
    overhead = {d.name: d.overhead for d in machine.devices}
    before = [sum(1 << i for i in sources) for sources in graph.sources]
    best: dict[tuple[int, str], float] = {(0, ""): 0.0}
    queue = [(0.0, 0, "")]
    while queue:
        cost, done, last = heapq.heappop(queue)
        if done == (1 << len(nodes)) - 1:
            return cost
        for i, node in enumerate(nodes):
            device = device_of[node.name]
            if done >> i & 1 or before[i] & ~done:
                continue
            state = (done | 1 << i, device)
            reached = cost + (overhead[device] if device != last else 0.0)
            if reached < best.get(state, math.inf):
                best[state] = reached
                heapq.heappush(queue, (reached, *state))
    raise AssertionError("no order runs the graph")


def least_cost(graph: Graph, machine: Machine, pins: Mapping[str, str] | None = None) -> float:
    """The least cost over all placements and partitions; infinite if there is none."""
    able: list[Sequence[str]] = [
        [
            d.name
            for d in machine.devices
            if machine.refusal(d.name, n.name) is None and (pins or {}).get(n.name, d.name) == d.name
        ]
        for n in graph.nodes
    ]
    least = math.inf
    for choice in itertools.product(*able):
        device_of = {n.name: d for n, d in zip(graph.nodes, choice, strict=True)}
        cost = placement_cost(graph, machine, device_of)
        if cost < least:
            least = min(least, cost + partitions_cost(graph, machine, device_of))
    return least
