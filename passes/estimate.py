"""Estimated times of a plan: a roofline model per node, latency and bandwidth per transfer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from heterocc.passes.cost import Machine
from heterocc.passes.graph import Graph, Node
from heterocc.passes.plan import UNPLACED, Plan
from heterocc.passes.sent import Sent


def node_seconds(graph: Graph, machine: Machine, device: str, node: Node) -> float:
    """Seconds of one node: as stated, else its launch and the slower of arithmetic and memory traffic (roofline)."""
    stated = machine.seconds.get(device, {}).get(node.name)
    if stated is not None:
        return stated
    model = machine.device(device)
    moved = sum(graph.values[v].nbytes for v in (*dict.fromkeys(node.inputs), *node.outputs))
    return model.launch + max(machine.work.get(node.name, 0.0) / model.flops, moved / model.bandwidth)


@dataclass(frozen=True, slots=True)
class Times:
    """For each node, in graph order, and each device: seconds as of `node_seconds`, and `knows_time`.

    The arrays are shared, and must not be changed.
    """

    seconds: npt.NDArray[np.float64]
    known: npt.NDArray[np.bool_]


def node_times(graph: Graph, machine: Machine) -> Times:
    """Times of all nodes on all devices, computed once for a machine and the graph that it is used with."""
    kept = machine.kept.get("times")
    if kept is not None and kept[0] is graph:
        return cast(Times, kept[1])
    seconds = np.empty((len(graph.nodes), len(machine.devices)))
    known = np.ones(seconds.shape, bool)
    for column, device in enumerate(machine.devices):
        times = list(map(machine.seconds.get(device.name, {}).get, graph.names))
        if None in times:
            known[:, column] = [
                time is not None or name in machine.work for time, name in zip(times, graph.names, strict=True)
            ]
            seconds[:, column] = [
                node_seconds(graph, machine, device.name, node) if time is None else time
                for time, node in zip(times, graph.nodes, strict=True)
            ]
        else:
            seconds[:, column] = times
    found = Times(seconds, known)
    machine.kept["times"] = graph, found
    return found


def transfer_seconds(machine: Machine, source: str, target: str, nbytes: int) -> float:
    """Seconds to transfer `nbytes` from one device to another; infinite over a link that cannot be used."""
    link = machine.link(source, target)
    return math.inf if link is None else link.latency + nbytes / link.bandwidth


def is_costed(plan: Plan) -> bool:
    """Return whether the time or the work of every node is known, so that estimates are meaningful."""
    if not plan.graph.nodes:
        return False
    labels, known = plan.labels, node_times(plan.graph, plan.machine).known
    placed = np.flatnonzero(labels < known.shape[1])
    if not known[placed, labels[placed]].all():
        return False
    return len(placed) == len(labels) or all(
        plan.graph.names[node] in plan.machine.work for node in np.flatnonzero(labels == known.shape[1]).tolist()
    )


def knows_time(machine: Machine, node: Node, device: str) -> bool:
    """Return whether the node's time on the device is stated or can be estimated."""
    return node.name in machine.work or node.name in machine.seconds.get(device, {})


def plan_seconds(plan: Plan) -> float | None:
    """Seconds of one run with devices one after the other; None if work is unknown or a node is not placed."""
    if any(p.device == UNPLACED for p in plan.partitions) or not is_costed(plan):
        return None
    times = node_times(plan.graph, plan.machine).seconds
    overheads = {d.name: d.overhead for d in plan.machine.devices}
    overhead = math.fsum([overheads[p.device] for p in plan.partitions])
    return math.fsum(times[np.arange(len(times)), plan.labels].tolist()) + _transfers_seconds(plan) + overhead


def _transfers_seconds(plan: Plan) -> float:
    """Seconds of all transfers of a placed plan, as of `transfer_seconds`."""
    sent, labels = Sent.of(plan.graph), plan.labels
    sources, targets = labels[sent.producer], labels[sent.readers]
    seconds: list[float] = []
    for number, target in enumerate(plan.machine.devices):
        received = sent.any_reader(targets == number)
        for other, source in enumerate(plan.machine.devices):
            nbytes = sent.nbytes[received & (sources == other)]
            if other == number or not len(nbytes):
                continue
            link = plan.machine.link(source.name, target.name)
            if link is None:
                return math.inf
            seconds += (link.latency + nbytes / link.bandwidth).tolist()
    return math.fsum(seconds)


def device_seconds(plan: Plan) -> dict[str, float]:
    """Seconds that one run occupies each device: its nodes, its partitions' overhead, and transfers to it."""
    graph, machine, device_of = plan.graph, plan.machine, plan.device_of
    found = {d.name: 0.0 for d in machine.devices}
    for node in graph.nodes:
        found[device_of[node.name]] += node_seconds(graph, machine, device_of[node.name], node)
    for part in plan.partitions:
        found[part.device] += machine.device(part.device).overhead
    for sent in plan.transfers:
        found[sent.target] += transfer_seconds(machine, sent.source, sent.target, sent.nbytes)
    return found
