"""First-fit placement with memory budgets, used by `greedy`, and by `manual` if pins exceed a device's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterocc.artifacts.errors import Hint, PinnedDeviceError, UnsupportedOpError
from heterocc.passes.cost import Machine
from heterocc.passes.graph import Graph, Node
from heterocc.passes.plan import UNPLACED
from heterocc.passes.shapes import shape_nodes


class Budget:
    """Bytes that placed nodes use on each device: their outputs, and each constant once per device."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self._graph = graph
        self._limits = {d.name: d.memory for d in machine.devices}
        self._constants: dict[str, set[str]] = {d.name: set() for d in machine.devices}
        self.used: dict[str, int] = {d.name: 0 for d in machine.devices}

    def need(self, device: str, *nodes: Node) -> int:
        """Bytes that `nodes` would add to `device`."""
        values = self._graph.values
        held = self._constants[device]
        constants = {v for n in nodes for v in n.inputs if v in self._graph.constants and v not in held}
        return sum(values[v].nbytes for n in nodes for v in n.outputs) + sum(values[v].nbytes for v in constants)

    def fits(self, device: str, *nodes: Node) -> bool:
        """Return whether `device` has enough memory for `nodes`."""
        limit = self._limits[device]
        return limit is None or self.used[device] + self.need(device, *nodes) <= limit

    def add(self, device: str, *nodes: Node) -> None:
        """Place `nodes` on `device`."""
        self.used[device] += self.need(device, *nodes)
        self._constants[device].update(v for n in nodes for v in n.inputs if v in self._graph.constants)

    def why_full(self, device: str, *nodes: Node) -> str:
        """The reason why `nodes` do not fit on `device`."""
        limit = self._limits[device]
        return f"needs {self.need(device, *nodes)} bytes, {self.used[device]} of {limit} are in use"


def place(graph: Graph, machine: Machine, pins: Mapping[str, str]) -> dict[str, str]:
    """The device of every node: its pin, else the first listed device that can run it and has enough memory.

    Nodes are placed in graph order, pinned ones first. Devices of last resort come after all others, regardless of
    their position in the list. Nodes that compute shapes prefer the first CPU in the list. A device that is not linked
    to those that write a node's inputs is passed over.
    Raises UnsupportedOpError (HC201) with a reason per device, and PinnedDeviceError (HC202) if pins exceed the memory
    of a device, or need a link that cannot be used.
    """
    ranked = sorted(machine.devices, key=lambda d: d.last_resort)
    host = [d for d in ranked if d.kind == "cpu" and not d.last_resort]
    shapes = shape_nodes(graph) if host else frozenset()
    budget = Budget(graph, machine)
    partial = not machine.is_connected
    bounded = any(d.memory is not None for d in machine.devices)
    refusals = {d.name: machine.refusals.get(d.name, {}) for d in machine.devices}
    device_of: dict[str, str] = {}
    for node in graph.nodes:
        if node.name in pins:
            device = pins[node.name]
            if bounded and not budget.fits(device, node):
                raise PinnedDeviceError(
                    f"{device} lacks memory for {node.op_type} '{node.label}': {budget.why_full(device, node)}",
                    where=f"node '{node.label}' ({node.op_type})",
                    hint=f"pin fewer nodes to {device}",
                )
            apart = unlinked(graph, machine, device_of, device, node) if partial else None
            if apart is not None:
                raise PinnedDeviceError(
                    f"{node.op_type} '{node.label}' is pinned to {device}, and {apart}, where a neighbour is pinned",
                    where=f"node '{node.label}' ({node.op_type})",
                    hint="pin both to one device, or to devices that are linked",
                )
            if bounded:
                budget.add(device, node)
            device_of[node.name] = device
    left: Sequence[Node] = graph.nodes
    if not (partial or bounded or pins or shapes):  # many models: only what the first device refuses takes time
        first = ranked[0].name
        device_of = dict.fromkeys(graph.names, first)
        refused = sorted([graph.position[name] for name in refusals[first] if name in graph.position])
        left = [graph.nodes[place] for place in refused]
        ranked = ranked[1:]
    for node in left:
        if node.name in pins:
            continue
        candidates = [*host[:1], *ranked] if shapes and node.name in shapes else ranked
        if partial:
            candidates = [d for d in candidates if unlinked(graph, machine, device_of, d.name, node) is None]
        for candidate in candidates:
            chosen = candidate.name
            if node.name not in refusals[chosen] and (not bounded or budget.fits(chosen, node)):
                break
        else:
            raise _unsupported(graph, machine, budget, device_of, node)
        if bounded:
            budget.add(chosen, node)
        device_of[node.name] = chosen
    return {n.name: device_of[n.name] for n in graph.nodes} if pins else device_of


def overfull(graph: Graph, machine: Machine, device_of: Mapping[str, str]) -> bool:
    """Return whether the placed nodes of `device_of` exceed the memory of a device."""
    used = device_bytes(graph, machine, device_of)
    return any(d.memory is not None and used[d.name] > d.memory for d in machine.devices)


def device_bytes(graph: Graph, machine: Machine, device_of: Mapping[str, str]) -> dict[str, int]:
    """Bytes of constants and outputs of the placed nodes on each device."""
    budget = Budget(graph, machine)
    for node in graph.nodes:
        if device_of[node.name] != UNPLACED:
            budget.add(device_of[node.name], node)
    return budget.used


def unlinked(graph: Graph, machine: Machine, device_of: Mapping[str, str], device: str, node: Node) -> str | None:
    """Why a node cannot exchange values on a device with nodes that are placed; None if it can."""
    for value in node.inputs:
        source = device_of.get(graph.producer.get(value, ""), device)
        if source != device and machine.link(source, device) is None:
            return f"nothing can be sent to it from {source}"
    for value in node.outputs:
        for consumer in graph.consumers.get(value, ()):
            target = device_of.get(consumer, device)
            if target != device and machine.link(device, target) is None:
                return f"nothing can be sent from it to {target}"
    return None


def _unsupported(
    graph: Graph, machine: Machine, budget: Budget, device_of: Mapping[str, str], node: Node
) -> UnsupportedOpError:
    def reason(device: str) -> str:
        refused = machine.refusal(device, node.name) or unlinked(graph, machine, device_of, device, node)
        return f"{device}: {refused or budget.why_full(device, node)}"

    return UnsupportedOpError(
        f"no device can run {node.op_type} '{node.label}' ({'; '.join(reason(d.name) for d in machine.devices)})",
        where=f"{graph.name}: node '{node.label}' ({node.op_type})",
        hint="see " + Hint("query_model", "`heterocc query`") + " for what each device can run",
    )
