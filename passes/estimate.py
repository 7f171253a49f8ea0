"""Estimated times of a plan: a roofline model per node, latency and bandwidth per transfer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from heterocc.passes.cost import Machine
from heterocc.passes.graph import Graph, Node
from heterocc.passes.plan import UNPLACED, Plan


def node_seconds(graph: Graph, machine: Machine, device: str, node: Node) -> float:
    """Seconds of one node: as stated, else its launch and the slower of arithmetic and memory traffic (roofline)."""
    stated = machine.seconds.get(device, {}).get(node.name)
    if stated is not None:
        return stated
    model = machine.device(device)
    moved = sum(graph.values[v].nbytes for v in (*dict.fromkeys(node.inputs), *node.outputs))
    return model.launch + max(machine.work.get(node.name, 0.0) / model.flops, moved / model.bandwidth)


def node_times(graph: Graph, machine: Machine) -> npt.NDArray[np.float64]:
    """Seconds as of `node_seconds` for each node, in graph order, on each device."""
    rows = np.empty((len(graph.nodes), len(machine.devices)))
    for column, device in enumerate(machine.devices):
        times = list(map(machine.seconds.get(device.name, {}).get, graph.names))
        if None in times:
            rows[:, column] = [
                node_seconds(graph, machine, device.name, node) if seconds is None else seconds
                for seconds, node in zip(times, graph.nodes, strict=True)
            ]
        else:
            rows[:, column] = times
    return rows


def transfer_seconds(machine: Machine, source: str, target: str, nbytes: int) -> float:
    """Seconds to transfer `nbytes` from one device to another; infinite over a link that cannot be used."""
    link = machine.link(source, target)
    return math.inf if link is None else link.latency + nbytes / link.bandwidth


def is_costed(plan: Plan) -> bool:
    """Return whether the time or the work of every node is known, so that estimates are meaningful."""
    work = plan.machine.work
    for part in plan.partitions:
        stated = plan.machine.seconds.get(part.device, {})
        left = [name for name in part.nodes if name not in stated]
        if left and not all(name in work for name in left):
            return False
    return bool(plan.graph.nodes)


def knows_time(machine: Machine, node: Node, device: str) -> bool:
    """Return whether the node's time on the device is stated or can be estimated."""
    return node.name in machine.work or node.name in machine.seconds.get(device, {})


def plan_seconds(plan: Plan) -> float | None:
    """Seconds of one run with devices one after the other; None if work is unknown or a node is not placed."""
    if any(p.device == UNPLACED for p in plan.partitions) or not is_costed(plan):
        return None
    transfers = sum(transfer_seconds(plan.machine, t.source, t.target, t.nbytes) for t in plan.transfers)
    overhead = sum(plan.machine.device(p.device).overhead for p in plan.partitions)
    return _seconds(plan.graph, plan.machine, plan.device_of) + transfers + overhead


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


def _seconds(graph: Graph, machine: Machine, device_of: Mapping[str, str]) -> float:
    stated = {d.name: machine.seconds.get(d.name, {}) for d in machine.devices}
    times = [stated[device_of[name]].get(name) for name in graph.names]
    known = [seconds for seconds in times if seconds is not None]
    left = [node for seconds, node in zip(times, graph.nodes, strict=True) if seconds is None]
    return math.fsum([*known, *(node_seconds(graph, machine, device_of[node.name], node) for node in left)])
