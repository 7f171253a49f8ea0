"""greedy: every node to the first listed device that can run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from heterocc.passes.placement import place
from heterocc.passes.plan import Plan, consecutive
from heterocc.passes.spec import SpecPass


@dataclass(frozen=True, slots=True, repr=False)
class Greedy(SpecPass):
    """Place every node on the first device of the list that neither refuses it nor lacks the memory.

    A device of last resort gets only what no other device takes; nodes that compute shapes stay on the CPU where
    one is listed. Partitions are runs of consecutive nodes. What was placed before is placed anew.

    Keeps: pins. Raises UnsupportedOpError (HC201) for a node that nobody can run.
    """

    name: ClassVar[str] = "greedy"

    def run(self, plan: Plan) -> Plan:
        """The plan with every node placed."""
        return plan.with_partitions(consecutive(plan.graph, place(plan.graph, plan.machine, plan.pins)))
