"""Objectives of a placement, and a plan's figures by which they are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from heterocc.artifacts.errors import Hint, UsageError

Objective = Literal["latency", "overlap", "throughput", "transfers", "memory"]

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
"""The objectives of `--objective`."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a plan was made for: its value by an objective, and a lower bound of that of any plan.

    latency and memory: seconds of one run, devices one after the other. overlap: seconds of one run in which devices
    work at the same time. throughput: seconds of the slowest device for each request. transfers: bytes between devices.
    """

    objective: Objective
    value: float
    bound: float


EFFECTS: Mapping[Objective, str] = MappingProxyType(
    {
        "latency": "a run takes the least estimated time",
        "overlap": "a run in which devices work at the same time takes the least estimated time",
        "throughput": "the slowest device takes the least estimated time for each request",
        "transfers": "the fewest bytes are sent between devices",
        "memory": "a run that fits in the devices' memory takes the least estimated time",
    }
)
"""For each objective, what is achieved by a node's device, as the beginning of a sentence."""


def require_objective(text: str) -> Objective:
    """The objective named `text`. Raises UsageError (HC120) for one that does not exist."""
    for objective in OBJECTIVES:
        if objective == text:
            return objective
    raise UsageError(
        f"'{text}' is not an objective",
        where=Hint(f"objective={text!r}", "--objective"),
        hint=f"objectives: {', '.join(OBJECTIVES)}",
    )
