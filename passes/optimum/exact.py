"""The best placement of small graphs by branch and bound, with a lower bound if it must stop.

`native/enumeration.cc` gives nodes their devices one after the other, cheapest first, and leaves out what cannot be
better than the best placement so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterocc.passes.native.calls import Memory, enumerated
from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.optimum.relaxed import Relaxed, factored, relaxed

STEPS = 10_000
"""Steps of the search for each unit of effort: about a fifth of a second."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best labels found, and a lower bound in seconds of what any labels cost."""

    labels: Labels
    bound: float


def solve(problem: Problem, known: Labels, bound: float, work: float, guide: Relaxed) -> Solution:
    """The best placement by the seconds of a run. `known` are labels at hand, `bound` a lower bound that is known.

    `work` limits the search; equal problems give equal results.
    """
    plain = relaxed(problem, known, launches=False)
    return _searched(problem, known, problem.total(known), bound, work, [guide, plain], slowest=False)


def solve_slowest(
    problem: Problem, known: Labels, slowest: float, bound: float, work: float, guides: Sequence[Relaxed]
) -> Solution:
    """The best placement by the seconds of the slowest device; `guides` are of problems with weights for devices."""
    return _searched(problem, known, slowest, bound, work, guides, slowest=True)


def fitting(problem: Problem, work: float) -> tuple[Labels | None, bool]:
    """Labels that no device lacks memory for, without regard to their cost, and whether this answer is certain.

    None with certainty means that there are none.
    """
    bound, labels = enumerated(
        factored(problem, whole=True), [], _memory(problem), np.inf, int(work * STEPS), any_=True
    )
    return labels, labels is not None or bool(np.isinf(bound))


def _searched(
    problem: Problem,
    known: Labels,
    cost: float,
    bound: float,
    work: float,
    guides: Sequence[Relaxed],
    *,
    slowest: bool,
) -> Solution:
    low, labels = enumerated(
        factored(problem, whole=True),
        [(guide.factored, guide.messages) for guide in guides],
        _memory(problem) if problem.is_bounded else None,
        cost,
        int(work * STEPS),
        slowest=slowest,
    )
    return Solution(known if labels is None else labels, max(bound, low * (1 - 1e-12)))


def _memory(problem: Problem) -> Memory:
    graph = problem.graph
    number: dict[str, int] = {}
    constants: list[int] = []
    first = [0]
    for node in graph.nodes:
        constants += [number.setdefault(v, len(number)) for v in dict.fromkeys(node.inputs) if v in graph.constants]
        first.append(len(constants))
    limits = [np.inf if d.memory is None else float(d.memory) for d in problem.machine.devices]
    return Memory(
        capacity=np.array(limits),
        own=np.array([sum(graph.values[v].nbytes for v in node.outputs) for node in graph.nodes], float),
        first_constant=np.array(first, np.int64),
        constants=np.array(constants, np.int64),
        constant_bytes=np.array([graph.values[v].nbytes for v in number], float),
    )
