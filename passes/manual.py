"""manual: the devices that the user assigned, which override automatic placement."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Final

from heterocc.artifacts.errors import AffinityCoverError, AffinityPatternError, Hint, PinnedDeviceError
from heterocc.passes.affinity import Rule, RuleKind
from heterocc.passes.cost import Machine
from heterocc.passes.graph import Graph, Node
from heterocc.passes.placement import overfull, place, unlinked
from heterocc.passes.plan import UNPLACED, Plan, consecutive
from heterocc.passes.spec import SpecPass

STRENGTH: Final[Mapping[RuleKind, int]] = {"op": 1, "glob": 2, "range": 3, "name": 4}
"""The precedence of the kinds of rules; the model's own metadata has 0."""


@dataclass(frozen=True, slots=True, repr=False)
class Manual(SpecPass):
    """Pin nodes to the devices that the plan's affinity and the model's own metadata assign.

    In mode `corrected` nodes that are not pinned keep their device, unless pins exceed the memory of a device: then all
    of them are placed again by first fit. In mode `manual` every node must be pinned, in mode `automatic` none is.

    Raises AffinityPatternError (HC108) for a rule that matches no node, PinnedDeviceError (HC202) for a pin to a
    device that is not listed, cannot run the node or lacks memory, and AffinityCoverError (HC112) for a node without a
    device in mode `manual`.
    """

    name: ClassVar[str] = "manual"

    def run(self, plan: Plan) -> Plan:
        """The plan with all pins set and all pinned nodes on their devices."""
        graph, machine = plan.graph, plan.machine
        if plan.affinity.mode == "automatic":
            return plan
        pins = _checked_pins(plan)
        if plan.affinity.mode == "manual":
            _check_cover(graph, pins)
        pins = {**plan.pins, **pins}
        if not pins:
            return plan
        device_of = {n.name: pins.get(n.name, plan.device_of[n.name]) for n in graph.nodes}
        if overfull(graph, machine, device_of) or _is_torn(graph, machine, device_of):
            device_of = place(graph, machine, pins)
        return plan.with_partitions(consecutive(graph, device_of), pins)


def _is_torn(graph: Graph, machine: Machine, device_of: Mapping[str, str]) -> bool:
    """Return whether values would have to cross links that cannot be used."""
    if machine.is_connected:
        return False
    placed = {name: device for name, device in device_of.items() if device != UNPLACED}
    return any(unlinked(graph, machine, placed, placed[n.name], n) is not None for n in graph.nodes if n.name in placed)


def deciding_rules(plan: Plan) -> dict[str, Rule]:
    """The strongest rule for each node that a rule or the model's metadata covers.

    Raises AffinityPatternError (HC108) for a rule that matches no node.
    """
    graph = plan.graph
    if plan.affinity.mode == "automatic":
        return {}
    strongest: dict[str, tuple[int, Rule]] = {
        n.name: (0, Rule("name", n.label, n.affinity, "the model's metadata 'affinity'"))
        for n in graph.nodes
        if n.affinity is not None and n.affinity.upper() not in plan.affinity.without
    }
    rules = plan.affinity.rules
    if not rules and not strongest:
        return {}
    index = _NameIndex(graph)
    for rule in rules:
        kind, matched = index.match(rule)
        for node in matched:
            if node not in strongest or strongest[node][0] <= STRENGTH[kind]:
                strongest[node] = (STRENGTH[kind], rule)
    return {name: rule for name, (_, rule) in strongest.items()}


def _checked_pins(plan: Plan) -> dict[str, str]:
    graph, rules = plan.graph, deciding_rules(plan)
    return {n.name: _listed_device(plan.machine, graph, n, rules[n.name]) for n in graph.nodes if n.name in rules}


def _listed_device(machine: Machine, graph: Graph, node: Node, rule: Rule) -> str:
    where = f"{rule.where or 'affinity'}: '{rule.pattern}' = '{rule.device}'"
    device = next((d.name for d in machine.devices if d.name.upper() == rule.device.upper()), None)
    if device is None:
        listed = ", ".join(d.name for d in machine.devices)
        raise PinnedDeviceError(
            f"{node.op_type} '{node.label}' is pinned to '{rule.device}', which is not listed",
            where=where,
            hint=f"listed devices: {listed}; change the affinity, or list {rule.device} too",
        )
    reason = machine.refusal(device, node.name)
    if reason is not None:
        able = [d.name for d in machine.devices if machine.refusal(d.name, node.name) is None]
        raise PinnedDeviceError(
            f"{device} cannot run {node.op_type} '{node.label}': {reason}",
            where=where,
            hint=f"{', '.join(able)} can run it"
            if able
            else "no listed device can run it; see " + Hint("query_model", "`heterocc query`") + " for the reasons",
        )
    return device


def _check_cover(graph: Graph, pins: Mapping[str, str]) -> None:
    left = [n for n in graph.nodes if n.name not in pins]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise AffinityCoverError(
            f"affinity mode 'manual' assigns no device to {left[0].op_type} '{left[0].label}'{more}",
            where=f"{graph.name}: node '{left[0].label}' ({left[0].op_type})",
            hint="add a rule for it, or use mode 'corrected' to place the rest automatically",
        )


class _NameIndex:
    """An index from node names, the model's own and the sanitised ones, to positions in graph order.

    A name may be the model's name of one node and the sanitised name of another. Names in a file are the model's own;
    keys of a mapping from Python are the graph's names, as in a query result.
    """

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._graphs: dict[str, list[int]] = {n.name: [i] for i, n in enumerate(graph.nodes)}
        self._models: dict[str, list[int]] = {}
        for position, node in enumerate(graph.nodes):
            for name in dict.fromkeys(node.original):
                if name:
                    self._models.setdefault(name, []).append(position)

    def _named(self, name: str, rule: Rule) -> list[int]:
        first, second = (self._graphs, self._models) if rule.kind == "any" else (self._models, self._graphs)
        return first.get(name) or second.get(name, [])

    def _all_names(self) -> list[tuple[str, list[int]]]:
        return [*self._models.items(), *self._graphs.items()]

    def match(self, rule: Rule) -> tuple[RuleKind, tuple[str, ...]]:
        """The kind of the rule and the nodes that match, at least one. Raises AffinityPatternError (HC108)."""
        readings: tuple[RuleKind, ...] = ("name", "op", "range", "glob") if rule.kind == "any" else (rule.kind,)
        for kind in readings:
            pattern = rule.pattern
            if rule.kind == "any" and kind == "op":
                if not pattern.startswith("op:"):
                    continue
                pattern = pattern.removeprefix("op:")
            positions = self._positions(kind, pattern, rule)
            if positions:
                return kind, tuple(self._nodes[i].name for i in positions)
        raise AffinityPatternError(
            f"'{rule.pattern}' matches no {'operator type' if rule.kind == 'op' else 'node'} of the graph",
            where=rule.where or "affinity",
            hint=self._hint(rule),
        )

    def _positions(self, kind: RuleKind, pattern: str, rule: Rule) -> list[int]:
        if kind == "name":
            return self._named(pattern, rule)
        if kind == "op":
            return [i for i, n in enumerate(self._nodes) if n.op_type == pattern]
        if kind == "glob":
            return sorted({i for name, at in self._all_names() if fnmatchcase(name, pattern) for i in at})
        for cut in range(len(pattern) - 1):
            if pattern.startswith("..", cut):
                first, last = self._named(pattern[:cut], rule), self._named(pattern[cut + 2 :], rule)
                if first and last:
                    if first[0] > last[-1]:
                        raise AffinityPatternError(
                            f"range '{pattern}' runs backwards: its first node comes after its last in graph order",
                            where=rule.where or "affinity",
                            hint=f"write '{pattern[cut + 2 :]}..{pattern[:cut]}'",
                        )
                    return list(range(first[0], last[-1] + 1))
        return []

    def _hint(self, rule: Rule) -> str:
        if rule.kind == "op" or rule.pattern.startswith("op:"):
            types = sorted({n.op_type for n in self._nodes})
            near = difflib.get_close_matches(rule.pattern.removeprefix("op:"), types, n=3)
            first = list(dict.fromkeys([*near, *types]))[:12]
            return f"operator types of the model: {', '.join(first)}{', …' if len(types) > 12 else ''}"
        if rule.kind == "range" and ".." not in rule.pattern:
            return "write a range as FIRST..LAST, two node names"
        wanted = [rule.pattern]
        if rule.kind in ("any", "range") and ".." in rule.pattern:
            wanted = [end for end in rule.pattern.split("..") if not self._named(end, rule)] or wanted
        names = [n.label for n in self._nodes]
        near = [n for end in wanted for n in difflib.get_close_matches(end, names, n=3, cutoff=0.5)]
        shown = ", ".join(f"'{n}'" for n in dict.fromkeys(near or names[:3]))
        if near:
            return f"nearest names: {shown}"
        return f"names look like {shown}; " + Hint("query_model", "`heterocc query --json`") + " lists all of them"
