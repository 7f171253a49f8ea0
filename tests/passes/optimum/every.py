"""The best value of every objective on small graphs, by trying all placements and partitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from heterocc.passes.cost import Machine
from heterocc.passes.graph import Graph
from tests.passes.optimum.cost import partitions_cost, placement_cost


def placements(graph: Graph, machine: Machine) -> Iterator[dict[str, str]]:
    """Every placement that no device refuses and no missing link prevents."""
    able = [[d.name for d in machine.devices if machine.refusal(d.name, n.name) is None] for n in graph.nodes]
    for choice in itertools.product(*able):
        device_of = {n.name: d for n, d in zip(graph.nodes, choice, strict=True)}
        if not math.isinf(placement_cost(graph, machine, device_of)):
            yield device_of


def transfers(graph: Graph, device_of: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each value with the device that it is sent from and one that it is sent to."""
    for value, source in graph.producer.items():
        start = device_of[source]
        for end in sorted({device_of[reader] for reader in graph.consumers.get(value, ())} - {start}):
            yield value, start, end


def sent_bytes(graph: Graph, device_of: Mapping[str, str]) -> int:
    return sum(graph.values[value].nbytes for value, _, _ in transfers(graph, device_of))


def fewest_bytes(graph: Graph, machine: Machine) -> tuple[float, float]:
    """The fewest bytes, and the least cost with them."""
    return min(
        (
            (
                sent_bytes(graph, device_of),
                placement_cost(graph, machine, device_of) + partitions_cost(graph, machine, device_of),
            )
            for device_of in placements(graph, machine)
        ),
        default=(math.inf, math.inf),
    )


def held(graph: Graph, device_of: Mapping[str, str]) -> dict[str, int]:
    """Bytes of results and constants on each device."""
    found: dict[str, int] = {}
    seen: set[tuple[str, str]] = set()
    for node in graph.nodes:
        device = device_of[node.name]
        own = [v for v in node.inputs if v in graph.constants and (device, v) not in seen]
        seen.update((device, v) for v in own)
        found[device] = found.get(device, 0) + sum(graph.values[v].nbytes for v in {*own, *node.outputs})
    return found


def least_that_fits(graph: Graph, machine: Machine) -> float:
    """The least cost of a placement within all limits on memory; infinite if there is none."""
    limits = {d.name: d.memory for d in machine.devices}
    least = math.inf
    for device_of in placements(graph, machine):
        if all((limit := limits[d]) is None or nbytes <= limit for d, nbytes in held(graph, device_of).items()):
            cost = placement_cost(graph, machine, device_of)
            if cost < least:
                least = min(least, cost + partitions_cost(graph, machine, device_of))
    return least


def slowest_device(graph: Graph, machine: Machine) -> float:
    """The least time of the slowest device: nodes, transfers to it, and its partitions in the best order of all."""
    overhead = {d.name: d.overhead for d in machine.devices}
    least = math.inf
    for device_of in placements(graph, machine):
        load = dict.fromkeys(overhead, 0.0)
        for node in graph.nodes:
            load[device_of[node.name]] += machine.seconds[device_of[node.name]][node.name]
        for value, start, end in transfers(graph, device_of):
            link = machine.link(start, end)
            assert link is not None
            load[end] += link.latency + graph.values[value].nbytes / link.bandwidth
        if max(load.values()) < least:
            for counts in partition_counts(graph, device_of, list(overhead)):
                least = min(least, max(load[d] + n * overhead[d] for d, n in zip(overhead, counts, strict=True)))
    return least


def partition_counts(graph: Graph, device_of: Mapping[str, str], names: Sequence[str]) -> set[tuple[int, ...]]:
    """The numbers of partitions of each device that orders of single nodes give."""
    before = [sum(1 << i for i in sources) for sources in graph.sources]
    devices = [names.index(device_of[n.name]) for n in graph.nodes]
    reached: dict[tuple[int, int], set[tuple[int, ...]]] = {(0, -1): {(0,) * len(names)}}
    for _ in graph.nodes:
        following: dict[tuple[int, int], set[tuple[int, ...]]] = {}
        for (done, last), found in reached.items():
            for i, device in enumerate(devices):
                if done >> i & 1 or before[i] & ~done:
                    continue
                for counts in found:
                    step = tuple(n + (d == device != last) for d, n in enumerate(counts))
                    following.setdefault((done | 1 << i, device), set()).add(step)
        reached = following
    return {counts for found in reached.values() for counts in found}


def earliest_end(graph: Graph, machine: Machine) -> float:
    """The least time of a run with devices at the same time, over placements, partitions and their orders."""
    least = math.inf
    for device_of in placements(graph, machine):
        for order in ordered_partitions(graph, device_of):
            least = min(least, end_of_run(graph, machine, device_of, order))
    return least


def ordered_partitions(graph: Graph, device_of: Mapping[str, str]) -> Iterator[list[list[int]]]:
    """Every list of partitions in run order."""

    def extend(done: frozenset[int], order: list[list[int]]) -> Iterator[list[list[int]]]:
        left = [i for i in range(len(graph.nodes)) if i not in done]
        if not left:
            yield order
        for size in range(1, len(left) + 1):
            for group in itertools.combinations(left, size):
                inside = {*group, *done}
                if len({device_of[graph.nodes[i].name] for i in group}) == 1 and all(
                    inside.issuperset(graph.sources[i]) for i in group
                ):
                    yield from extend(frozenset(inside), [*order, list(group)])

    yield from extend(frozenset(), [])


def end_of_run(graph: Graph, machine: Machine, device_of: Mapping[str, str], order: Sequence[Sequence[int]]) -> float:
    """The end of a run: devices and links do one thing after the other, each as early as it can."""
    free: dict[object, float] = {}
    there: dict[tuple[str, str], float] = {}
    end = 0.0
    for group in order:
        device = device_of[graph.nodes[group[0]].name]
        own = {v for i in group for v in graph.nodes[i].outputs}
        reads = [v for i in group for v in graph.nodes[i].inputs if v in graph.producer and v not in own]
        start = max([free.get(device, 0.0), *(there[v, device] for v in reads)])
        spent = sum(machine.seconds[device][graph.nodes[i].name] for i in group)
        free[device] = start + machine.device(device).overhead + spent
        end = max(end, free[device])
        for i in group:
            for value in graph.nodes[i].outputs:
                there[value, device] = free[device]
        for i in group:
            for value in graph.nodes[i].outputs:
                for target in sorted({device_of[r] for r in graph.consumers.get(value, ())} - {device}):
                    link = machine.link(device, target)
                    assert link is not None
                    begin = max(free[device], free.get((device, target), 0.0))
                    free[device, target] = begin + link.latency + graph.values[value].nbytes / link.bandwidth
                    there[value, target] = free[device, target]
    return end
