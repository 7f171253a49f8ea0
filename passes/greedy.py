"""greedy: place every node on the first listed device that can run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from heterocc.passes.placement import place
from heterocc.passes.plan import Plan, consecutive
from heterocc.passes.spec import SpecPass


@dataclass(frozen=True, slots=True, repr=False)
class Greedy(SpecPass):
    """Place every node on the first listed device that neither refuses it nor lacks memory for it.

    A device of last resort gets only nodes that no other device can run. Nodes that compute shapes are placed on the
    CPU if it is listed. Partitions are runs of consecutive nodes. An earlier placement is discarded.

    Keeps: pins. Raises UnsupportedOpError (HC201) for a node that no device can run.
    """

    name: ClassVar[str] = "greedy"

    def run(self, plan: Plan) -> Plan:
        """The plan with every node placed."""
        return plan.with_partitions(consecutive(plan.graph, place(plan.graph, plan.machine, plan.pins)))
