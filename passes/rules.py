"""Constraints of devices on their partitions: what a plan breaks, and plans that break nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from heterocc.artifacts.errors import PinnedDeviceError, UnsupportedOpError
from heterocc.passes.cost import Machine, PartitionRules
from heterocc.passes.estimate import knows_time, node_seconds, plan_seconds
from heterocc.passes.graph import Graph, Node
from heterocc.passes.plan import UNPLACED, Plan

RULE = "a rule of the device: "
"""The beginning of refusals that follow from rules."""

NO_RULES = PartitionRules()


def within_rules(plan: Plan, run: Callable[[Plan], Plan], *, fastest: bool = False) -> Plan:
    """The plan that `run` makes of `plan`, made again without the nodes that break a device's rules until none does.

    A node that breaks a rule is refused by the device from then on, so the search ends, and the result's machine has
    the reasons. With `fastest`, plans that leave a device with rules without nodes are tried too, and the one of least
    estimated time is taken; a bound of the first plan stays valid.

    Raises PinnedDeviceError (HC202) if a pinned node breaks a rule, and what `run` raises, UnsupportedOpError (HC201)
    for a node that no other device can run.
    """
    first = run(plan)
    if all(d.rules == NO_RULES for d in plan.machine.devices):
        return first
    found, refused = first, plan.machine.refusals
    while broken := rules_broken(found):
        _require_free(found, broken)
        refused = _joined(refused, broken)
        found = run(replace(plan, machine=replace(plan.machine, refusals=refused)))
    if fastest and refused is not plan.machine.refusals:
        found = min([found, *_without_devices(plan, run)], key=_estimated)
    return replace(found, bound=first.bound if found.bound is not None else None)


def without_rules(machine: Machine) -> Machine:
    """The machine without the refusals that follow from rules."""
    return replace(
        machine,
        refusals={
            device: {node: reason for node, reason in reasons.items() if not reason.startswith(RULE)}
            for device, reasons in machine.refusals.items()
        },
    )


def rules_broken(plan: Plan) -> dict[str, dict[str, str]]:
    """Nodes that break a rule of the device that they are on, by device, with the reason.

    Nodes of a partition that would break a rule once these are gone are included.
    """
    found: dict[str, dict[str, str]] = {}
    kept: dict[str, list[tuple[str, ...]]] = {}
    for index, part in enumerate(plan.partitions):
        rules = NO_RULES if part.device == UNPLACED else plan.machine.device(part.device).rules
        if rules == NO_RULES:
            continue
        reasons = _broken_within(plan, plan.nodes_of(index), part.device, rules)
        found.setdefault(part.device, {}).update(reasons)
        if len(reasons) < len(part.nodes):
            kept.setdefault(part.device, []).append(part.nodes)
    for device, parts in kept.items():
        most = plan.machine.device(device).rules.max_count
        if most is not None and len(parts) > most:
            # Half of the excess at a time: what is left may be joined then.
            parts.sort(key=lambda nodes: _gain(plan, device, nodes))
            reason = f"{RULE}at most {most} partition{'s' * (most != 1)}"
            for nodes in parts[: (len(parts) - most + 1) // 2]:
                found[device].update(dict.fromkeys(nodes, reason))
    return {device: reasons for device, reasons in found.items() if reasons}


def _broken_within(plan: Plan, nodes: Sequence[Node], device: str, rules: PartitionRules) -> dict[str, str]:
    beside = {op_type: frozenset(near) for op_type, near in rules.only_beside}
    inside = {n.name: n for n in nodes}
    found: dict[str, str] = {}
    changed = True
    while changed:
        changed = False
        for node in list(inside.values()):
            reason = _objection(plan.graph, inside, node, rules, beside)
            if reason is not None:
                found[node.name] = RULE + reason
                del inside[node.name]
                changed = True
    if inside and len(inside) < rules.min_nodes:
        reason = f"{RULE}a partition has at least {rules.min_nodes} nodes"
        found.update(dict.fromkeys(inside, reason))
    elif inside and rules.min_seconds and all(knows_time(plan.machine, n, device) for n in inside.values()):
        seconds = sum(node_seconds(plan.graph, plan.machine, device, n) for n in inside.values())
        if seconds < rules.min_seconds:
            reason = f"{RULE}a partition takes at least {rules.min_seconds * 1e6:g} us"
            found.update(dict.fromkeys(inside, reason))
    return found


def _objection(
    graph: Graph,
    inside: Mapping[str, Node],
    node: Node,
    rules: PartitionRules,
    beside: Mapping[str, frozenset[str]],
) -> str | None:
    before = [inside[p] for v in node.inputs if (p := graph.producer.get(v, "")) in inside]
    after = [inside[c] for v in node.outputs for c in graph.consumers.get(v, ()) if c in inside]
    if node.op_type in rules.never_first and not before:
        return f"no partition starts with {node.op_type}"
    if node.op_type in rules.never_last and not after:
        return f"no partition ends with {node.op_type}"
    near = beside.get(node.op_type)
    if near is not None and not any(not near or n.op_type in near for n in (*before, *after)):
        return f"{node.op_type} only together with {' or '.join(sorted(near)) if near else 'a neighbour'}"
    return None


def _gain(plan: Plan, device: str, nodes: Sequence[str]) -> tuple[float, int]:
    """Seconds that the partition's nodes would take longer on the best of the other devices, and their number."""
    longer = 0.0
    others = [d.name for d in plan.machine.devices if d.name != device]
    for name in nodes:
        node = plan.graph.node_by_name[name]
        able = [d for d in others if plan.machine.refusal(d, name) is None and knows_time(plan.machine, node, d)]
        if able and knows_time(plan.machine, node, device):
            longer += min(node_seconds(plan.graph, plan.machine, d, node) for d in able)
            longer -= node_seconds(plan.graph, plan.machine, device, node)
    return longer, len(nodes)


def _require_free(plan: Plan, broken: Mapping[str, Mapping[str, str]]) -> None:
    for device, reasons in broken.items():
        name = next((n for n in reasons if n in plan.pins), None)
        if name is not None:
            node = plan.graph.node_by_name[name]
            raise PinnedDeviceError(
                f"{node.op_type} '{node.label}' is pinned to {device}, but breaks {reasons[name]}",
                where=f"node '{node.label}' ({node.op_type})",
                hint=f"pin its neighbours to {device} too, or change the rules in the device's file",
            )


def _joined(
    refusals: Mapping[str, Mapping[str, str]], broken: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    devices = dict.fromkeys((*refusals, *broken))
    return {device: {**broken.get(device, {}), **refusals.get(device, {})} for device in devices}


def _without_devices(plan: Plan, run: Callable[[Plan], Plan]) -> list[Plan]:
    """Plans in which one device with rules, that no node is pinned to, has no node."""
    found = []
    for device in plan.machine.devices:
        if device.rules == NO_RULES:
            continue
        reasons = {device.name: {n.name: f"{RULE}its partitions take more time" for n in plan.graph.nodes}}
        machine = replace(plan.machine, refusals=_joined(plan.machine.refusals, reasons))
        try:
            made = run(replace(plan, machine=machine))
        except UnsupportedOpError:
            continue
        if not rules_broken(made):
            found.append(made)
    return found


def _estimated(plan: Plan) -> float:
    seconds = plan_seconds(plan)
    return 0.0 if seconds is None else seconds
