"""The explanation of a plan: nodes, partitions, transfers and other plans beside it, with its JSON form."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from heterocc.artifacts.errors import AffinityPatternError
from heterocc.passes.alone import alone, shown
from heterocc.passes.base import Pass
from heterocc.passes.estimate import plan_seconds
from heterocc.passes.explain.costs import Costs, PartitionCost
from heterocc.passes.explain.details import Details
from heterocc.passes.explain.reasons import NodeReason, Reasons
from heterocc.passes.explain.transfers import TransferReason, transfer_reason
from heterocc.passes.plan import UNPLACED, Plan
from heterocc.passes.show.printer import count, human_seconds, summary

SLOWER = 2.0
"""A plan that is estimated to take longer than the CPU alone by more than this factor is reported."""


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """A plan of another policy or of one device, in figures; `why_not` says why there is none.

    `seconds` are estimated and `measured` those of an undisturbed run on the devices, None if unknown. `chosen` marks
    the plan that is explained.
    """

    name: str
    devices: tuple[tuple[str, int], ...] = ()
    partitions: int = 0
    transfers: int = 0
    nbytes: int = 0
    seconds: float | None = None
    measured: float | None = None
    why_not: str | None = None
    chosen: bool = False

    @classmethod
    def of(cls, name: str, plan: Plan, measured: float | None = None, *, chosen: bool = False) -> OtherPlan:
        """The figures of a plan."""
        nodes = Counter(plan.device_of.values())
        return cls(
            name,
            tuple((d.name, nodes[d.name]) for d in plan.machine.devices if nodes[d.name]),
            len(plan.partitions),
            len(plan.transfers),
            sum(t.nbytes for t in plan.transfers),
            plan_seconds(plan),
            measured,
            chosen=chosen,
        )

    def to_json(self) -> dict[str, object]:
        """As `--json` prints it; times in microseconds."""
        return {
            "name": self.name,
            "nodes": dict(self.devices),
            "partitions": self.partitions,
            "transfers": self.transfers,
            "transfer_bytes": self.nbytes,
            "estimated_us": micros(self.seconds),
            "measured_us": micros(self.measured),
            "why_not": self.why_not,
            "chosen": self.chosen,
        }


@dataclass(frozen=True)
class Explanation:
    """A plan with its reasons and costs; `policy` is how it was asked for, `others` are plans beside it.

    All times are estimates, in seconds, of a run that does one thing after the other, but for `measured`: those
    of plans that were timed, by name, the plan first, of which `timing` says in a sentence which one was kept for which
    sizes. `beside` are sentences on the bundle's variants for other shapes, `details` what reports show beside these.
    """

    plan: Plan
    passes: tuple[Pass, ...]
    policy: str
    others: tuple[OtherPlan, ...] = ()
    measured: tuple[tuple[str, float], ...] = ()
    beside: tuple[str, ...] = ()
    timing: str = ""
    details: Details = field(default_factory=Details)

    def __repr__(self) -> str:
        return f"<Explanation of {self.plan!r}, policy {self.policy}, beside {len(self.others)} other plans>"

    @cached_property
    def costs(self) -> Costs:
        """The costs of the plan."""
        return Costs(self.plan)

    @cached_property
    def reasons(self) -> Reasons:
        """The reasons of the plan."""
        fastest = next(iter(self.measured), None)
        return Reasons(self.plan, self.passes, self.costs, fastest)

    @property
    def nodes(self) -> tuple[NodeReason, ...]:
        """The reason for every node, in graph order."""
        return self.reasons.nodes

    @property
    def partitions(self) -> tuple[PartitionCost, ...]:
        """The partitions in run order."""
        return self.costs.timeline[0]

    @cached_property
    def transfers(self) -> tuple[TransferReason, ...]:
        """The transfers in run order."""
        return tuple(transfer_reason(self.reasons, cost) for cost in self.costs.timeline[1])

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was timed, variants beside it, devices without nodes, and a plan that is slower than the CPU alone."""
        told = (self.timing,) if self.timing else ()
        if UNPLACED in self.plan.device_of.values():
            return (*told, *self.beside)
        return (*told, *self.beside, *idle_devices(self.plan, self.reasons), *slower_than_cpu(self.plan, self.policy))

    def named(self, pattern: str) -> tuple[NodeReason, ...]:
        """The nodes with a name of the model or the graph, or that a glob matches.

        Raises AffinityPatternError (HC108) if there is none.
        """
        found = tuple(r for r in self.nodes if pattern in (r.label, r.node))
        found = found or tuple(r for r in self.nodes if any(fnmatchcase(n, pattern) for n in (r.label, r.node)))
        if not found:
            names = ", ".join(f"'{r.label}'" for r in self.nodes[:3])
            raise AffinityPatternError(
                f"'{pattern}' matches no node of the graph",
                where="--node",
                hint=f"names look like {names}; nodes that the import folds have no device",
            )
        return found

    def to_json(self, nodes: Sequence[NodeReason] | None = None) -> dict[str, object]:
        """As `heterocc explain --json` prints it; times in microseconds. `nodes` are all by default."""
        return {
            "model": self.plan.graph.name,
            "devices": [d.name for d in self.plan.machine.devices],
            "policy": self.policy,
            "passes": ",".join(map(repr, self.passes)),
            "summary": summary(self.plan),
            "notes": list(self.notes),
            "estimated_us": micros(plan_seconds(self.plan)),
            "plans": [other.to_json() for other in self.others],
            "partitions": [
                {
                    "name": f"p{p.index}",
                    "device": p.device,
                    "nodes": list(p.nodes),
                    "estimated_us": micros(p.seconds),
                    "start_us": micros(p.start),
                    "bytes_in": p.bytes_in,
                    "bytes_out": p.bytes_out,
                }
                for p in self.partitions
            ],
            "transfers": [
                {
                    "value": t.value,
                    "from": t.source,
                    "to": t.target,
                    "bytes": t.nbytes,
                    "estimated_us": micros(t.seconds),
                    "start_us": micros(t.start),
                    "writer": t.writer,
                    "readers": list(t.readers),
                    "why": t.sentence,
                }
                for t in self.transfers
            ],
            "nodes": [node_json(r) for r in (self.nodes if nodes is None else nodes)],
        }


def node_json(reason: NodeReason) -> dict[str, object]:
    """The record of a node."""
    return {
        "name": reason.node,
        "label": reason.label,
        "op_type": reason.op_type,
        "device": reason.device,
        "partition": f"p{reason.partition}",
        "why": reason.why,
        "sentence": reason.sentence,
        "blocker": reason.blocker,
        "estimated_us": micros(reason.seconds),
        "others": [
            {"device": o.device, "possible": o.reason is None, "reason": o.reason, "longer_us": micros(o.seconds)}
            for o in reason.others
        ],
    }


def micros(seconds: float | None) -> float | None:
    """Microseconds with a tenth of a nanosecond's precision; None for unknown and infinite times."""
    return None if seconds is None or math.isinf(seconds) else round(seconds * 1e6, 4)


_DECIDED = {"cost": "mincut placed", "measured": "the fastest of the timed plans has"}


def idle_devices(plan: Plan, reasons: Reasons) -> list[str]:
    """A sentence for each listed device that gets no node: the node that keeps the others away, and why."""
    found = []
    used = set(plan.device_of.values())
    total = len(plan.graph.nodes)
    for device in plan.machine.devices:
        if device.name in used or not plan.graph.nodes or len(plan.machine.devices) == 1:
            continue
        refused = [n for n in plan.graph.nodes if reasons.refused(n, device.name) is not None]
        able = total - len(refused)
        head = f"{device.name} gets none of the {count(total, 'node')}"
        if device.last_resort:
            continue  # it runs only what no other listed device can, which is nothing to tell
        if not able:
            first = refused[0]
            found.append(f"{head}: it can run none of them; {shown(first)}: {reasons.refused(first, device.name)}")
            continue
        pulled = [n for n in plan.graph.nodes if reasons.first_fit.get(n.name) == device.name]
        if not pulled:
            # A device before it runs what it could, unless a pass or timed runs decided otherwise.
            chosen = [n for n in plan.graph.nodes if reasons.refused(n, device.name) is None]
            pulled = [n for n in chosen if reasons.decided(n)[0] in _DECIDED]
        if not pulled:
            continue
        found_why = [reasons.decided(n) for n in pulled]
        blocker = next((name for _, _, name in found_why if name is not None), None)
        decided = _DECIDED.get(found_why[0][0], "merge moved")
        where = " and ".join(dict.fromkeys(plan.device_of[n.name] for n in pulled))
        some = f"{len(pulled)} of " if len(pulled) < able else ""  # the CPU keeps small nodes that compute shapes
        moved = f"{decided} {some}the {count(able, 'node')} that it could run on {where}"
        if blocker is None:
            found.append(f"{head}: {moved}, where a run takes less time")
            continue
        cause = plan.graph.node_by_name[blocker]
        away = reasons.keeps_away(cause, device.name)
        found.append(f"{head}: {away}, and {moved}, because transfers would cost more than it saves")
    return found


def slower_than_cpu(plan: Plan, policy: str) -> list[str]:
    """A sentence if the plan is estimated slower than the CPU alone by more than the factor SLOWER."""
    seconds = plan_seconds(plan)
    if plan.goal is not None:
        return []  # the user asked for something else than the least time of a run
    for device in plan.machine.devices:
        if seconds is None or device.kind != "cpu" or set(plan.device_of.values()) == {device.name}:
            continue
        made = alone(plan, device.name)
        least = plan_seconds(made) if isinstance(made, Plan) else None
        if least is not None and seconds > SLOWER * least:
            better = "--policy optimal" if policy != "optimal" else "--policy measured"
            return [
                f"the plan is estimated at {human_seconds(seconds)}, {device.name} alone at {human_seconds(least)} "
                f"(more than {SLOWER:g} times faster): {better} chooses by time, --policy measured by timed runs"
            ]
    return []
