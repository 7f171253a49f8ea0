"""Why each node is on its device: the pass or rule that decided, and the nodes and reasons that block others."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from heterocc.artifacts.errors import HeteroccError
from heterocc.passes.affinity import Rule
from heterocc.passes.alone import shown
from heterocc.passes.base import Pass
from heterocc.passes.explain.costs import Costs
from heterocc.passes.graph import Node
from heterocc.passes.manual import deciding_rules
from heterocc.passes.merge import Merge
from heterocc.passes.mincut import MinCut
from heterocc.passes.objective import EFFECTS
from heterocc.passes.placement import place
from heterocc.passes.plan import Plan
from heterocc.passes.shapes import shape_nodes
from heterocc.passes.show.printer import human_seconds

Why = Literal["pin", "only", "shape", "priority", "island", "cost", "measured", "memory"]
"""What decided: the user's pin; no other device can run the node; it computes a shape, and stays on the CPU; the order
of devices; merge, which moved an island; the least estimated time; timed runs; a device before it that is full or not
linked."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another device for a node: the reason why it is not possible, or the seconds by which a run would get longer.

    `seconds` counts a move of this node alone, with its transfers, and is None if unknown or not possible.
    """

    device: str
    reason: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class NodeReason:
    """A node, its device and partition, and why it is there.

    `blocker` is the nearest node of the same island that keeps it there, if there is one. `seconds` is its estimated
    time.
    """

    node: str
    label: str
    op_type: str
    device: str
    partition: int
    why: Why
    sentence: str
    seconds: float | None
    blocker: str | None
    others: tuple[Alternative, ...]


@dataclass(frozen=True)
class Reasons:
    """The reasons of a plan that the passes made; `costs` are the plan's.

    `fastest` is the name and the measured seconds of the plan, if it was chosen by timing several.
    """

    plan: Plan
    passes: Sequence[Pass]
    costs: Costs
    fastest: tuple[str, float] | None = None

    def refused(self, node: Node, device: str) -> str | None:
        """The reason why the node cannot be on `device`: a refusal, a pin, a last resort; None if it can."""
        refusal = self.plan.machine.refusal(device, node.name)
        if refusal is not None:
            return refusal
        pin = self.plan.pins.get(node.name, device)
        if pin != device:
            return f"it is pinned to {pin}"
        if node.name not in self.plan.pins and self.fastest is None:  # timed plans are of the last resort, too
            others = [d for d in self.plan.machine.devices if not d.last_resort]
            if self.plan.machine.device(device).last_resort and any(
                self.plan.machine.refusal(d.name, node.name) is None for d in others
            ):
                return "it runs only what no other listed device can"
        return None

    def keeps_away(self, node: Node, device: str) -> str:
        """What a refused node means for `device`: `it cannot run LSTM 'rnn' (…)`, `LSTM 'rnn' is pinned to CPU`."""
        if self._is_pin(node, device):
            return f"{shown(node)} is pinned to {self.plan.pins[node.name]}"
        return f"it cannot run {shown(node)} ({self.refused(node, device)})"

    def _apart(self, node: Node, device: str) -> str:
        """A refused node with what keeps it away from `device`: `LSTM 'rnn', which GPU cannot run (…)`."""
        if self._is_pin(node, device):
            return f"{shown(node)}, which is pinned to {self.plan.pins[node.name]}"
        return f"{shown(node)}, which {device} cannot run ({self.refused(node, device)})"

    def _is_pin(self, node: Node, device: str) -> bool:
        return node.name in self.plan.pins and self.plan.machine.refusal(device, node.name) is None

    @cached_property
    def first_fit(self) -> Mapping[str, str]:
        """The placement by priority alone, before any pass moves a node; empty if there is none."""
        try:
            return place(self.plan.graph, self.plan.machine, self.plan.pins)
        except HeteroccError:
            return {}

    @cached_property
    def nodes(self) -> tuple[NodeReason, ...]:
        """The reason for every node, in graph order."""
        partition = {name: i for i, part in enumerate(self.plan.partitions) for name in part.nodes}
        return tuple(self._explained(node, partition[node.name]) for node in self.plan.graph.nodes)

    def _explained(self, node: Node, partition: int) -> NodeReason:
        plan = self.plan
        device = plan.device_of[node.name]
        others = []
        for other in plan.machine.devices:
            if other.name != device:
                reason = self.refused(node, other.name)
                others.append(
                    Alternative(other.name, reason, self.costs.move(node, other.name) if not reason else None)
                )
        why, sentence, blocker = self.decided(node)
        seconds = self.costs.node(node, device)
        return NodeReason(
            node.name, node.label, node.op_type, device, partition, why, sentence, seconds, blocker, tuple(others)
        )

    def decided(self, node: Node) -> tuple[Why, str, str | None]:
        """Why the node is on its device, the sentence for the user, and the node that keeps it there, if any."""
        plan, machine = self.plan, self.plan.machine
        device = plan.device_of[node.name]
        if node.name in plan.pins:
            rule = self._rules.get(node.name)
            by = f" by {rule.where or 'the affinity'}: '{rule.pattern}'" if rule is not None else ""
            return "pin", f"pinned to {device}{by}", None
        able = [d.name for d in machine.devices if self.refused(node, d.name) is None]
        if len(machine.devices) == 1:
            return "only", f"{device} is the only listed device", None
        if able == [device]:
            return "only", self._alone(node, device), None
        first = self.first_fit.get(node.name, device)
        if device == first and node.name in self._shapes and machine.device(device).kind == "cpu":
            return "shape", f"it computes a shape, and such nodes stay on {device}", None
        if self.fastest is not None:
            name, seconds = self.fastest
            return "measured", f"of the plans that were timed, '{name}' was kept: {human_seconds(seconds)}", None
        for pass_ in self.passes:
            if isinstance(pass_, MinCut):
                return self._cheapest(node, device, EFFECTS[pass_.objective])
        if device != first:
            return self._pulled(node, first, device)
        if device == able[0]:
            before = [d.name for d in machine.devices[: _index(machine.devices, device)]]
            refusals = "; ".join(f"{d}: {self.refused(node, d)}" for d in before)
            sentence = f"{device} is the first listed device that can run it" + (f" ({refusals})" if refusals else "")
            return "priority", sentence, None
        return (
            "memory",
            f"{able[0]}, listed before {device}, lacks memory for it or is not linked to its neighbours",
            None,
        )

    def _pulled(self, node: Node, first: str, device: str) -> tuple[Why, str, str | None]:
        name = "merge" if any(isinstance(p, Merge) for p in self.passes) else "a pass"
        blocker = self._blockers(first, device).get(node.name)
        if blocker is None:
            return "island", f"{name} moved it from {first} to {device}, where a run takes less time", None
        cause = self.plan.graph.node_by_name[blocker]
        sentence = (
            f"{name} moved it from {first} to {device}, to its neighbour {self._apart(cause, first)}: "
            f"transfers between the two would cost more than {first} saves"
        )
        return "island", sentence, blocker

    def _cheapest(self, node: Node, device: str, effect: str) -> tuple[Why, str, str | None]:
        for other in (d.name for d in self.plan.machine.devices if d.name != device):
            blocker = self._blockers(other, device).get(node.name)
            if blocker is not None and self.refused(node, other) is None:
                cause = self.plan.graph.node_by_name[blocker]
                return (
                    "cost",
                    f"{effect} with it on {device}, beside {self._apart(cause, other)}",
                    blocker,
                )
        return "cost", f"{effect} with it on {device}", None

    @cached_property
    def _rules(self) -> Mapping[str, Rule]:
        try:
            return deciding_rules(self.plan)
        except HeteroccError:
            return {}

    @cached_property
    def _shapes(self) -> frozenset[str]:
        return shape_nodes(self.plan.graph)

    @cached_property
    def _nearest(self) -> dict[tuple[str, str], dict[str, str]]:
        return {}

    def _blockers(self, wanted: str, device: str) -> Mapping[str, str]:
        """For nodes on `device`, the nearest node there, over edges within the device, that cannot be on `wanted`."""
        key = (wanted, device)
        if key in self._nearest:
            return self._nearest[key]
        plan, graph = self.plan, self.plan.graph
        nearest = {
            n.name: n.name
            for n in graph.nodes
            if plan.device_of[n.name] == device and self.refused(n, wanted) is not None
        }
        queue = deque(nearest)
        while queue:
            name = queue.popleft()
            node = graph.node_by_name[name]
            near = [graph.producer[v] for v in node.inputs if v in graph.producer]
            near += [r for v in node.outputs for r in graph.consumers.get(v, ())]
            for other in near:
                if other not in nearest and plan.device_of[other] == device:
                    nearest[other] = nearest[name]
                    queue.append(other)
        self._nearest[key] = nearest
        return nearest

    def _alone(self, node: Node, device: str) -> str:
        others = [d for d in self.plan.machine.devices if d.name != device]
        idle = [d.name for d in others if self.plan.machine.refusal(d.name, node.name) is None]
        refusals = "; ".join(f"{d.name}: {self.refused(node, d.name)}" for d in others if d.name not in idle)
        found = f"no other listed device can run it{f' ({refusals})' if refusals else ''}"
        return found if not idle else f"{found}, except {', '.join(idle)}, listed for what the others cannot run"


def _index(devices: Sequence[object], name: str) -> int:
    return next(i for i, d in enumerate(devices) if getattr(d, "name", None) == name)
