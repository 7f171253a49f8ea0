"""Measured times of a plan: averages of its partitions, transfers and kernels, and one run step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heterocc.passes.graph import Graph

Kind = Literal["partition", "transfer", "kernel"]


@dataclass(frozen=True, slots=True)
class Timed:
    """A measured step of a run: a partition (`p3`), a transfer or a kernel, with its mean seconds per run.

    `nodes` are labels of the nodes that a kernel computes, `kernel` is its symbol, and `calls` counts its calls in a
    run. `clock` is the clock of the time, the host's or the device's.
    """

    kind: Kind
    name: str
    device: str
    partition: str
    seconds: float
    nodes: tuple[str, ...] = ()
    kernel: str = ""
    calls: float = 1.0
    clock: Literal["host", "device"] = "host"


@dataclass(frozen=True, slots=True)
class Moment:
    """A step in one run: its place in `Measured.steps`, the seconds of its start and end, and its track.

    A track is what does one thing at a time: a thread, or a device by its own clock.
    """

    step: int
    begin: float
    end: float
    track: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The steps of a profile, in run order, with medians or means of `runs` runs; `moments` are those of one run.

    `note` is a sentence on the limits of the measurement.
    """

    steps: tuple[Timed, ...]
    runs: int = 1
    moments: tuple[Moment, ...] = ()
    note: str = ""

    @property
    def seconds(self) -> float:
        """The time of a run: its partitions and transfers."""
        return sum(step.seconds for step in self.steps if step.kind != "kernel")


def node_times(
    graph: Graph, steps: Sequence[Timed], estimates: Mapping[str, float | None]
) -> tuple[dict[str, float], dict[str, list[int]]]:
    """The measured seconds of each node of the graph, and the places of its kernels in `steps`.

    The time of a kernel is divided among its nodes by their estimated times, evenly if one of these is not known.
    Nodes that no kernel names have no entry.
    """
    by_label: dict[str, list[str]] = {}
    for node in graph.nodes:
        for label in dict.fromkeys((*node.original, node.name)):
            by_label.setdefault(label, []).append(node.name)
    times: dict[str, float] = {}
    kernels: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        if step.kind != "kernel":
            continue
        members = list(dict.fromkeys(name for label in step.nodes for name in by_label.get(label, ())))
        shares = [estimates.get(name) or 0.0 for name in members]
        if not all(shares):
            shares = [1.0] * len(members)
        for name, share in zip(members, shares, strict=True):
            times[name] = times.get(name, 0.0) + step.seconds * share / sum(shares)
            kernels.setdefault(name, []).append(place)
    return times, kernels
