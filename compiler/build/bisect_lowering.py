"""Finds the nodes for which a partition does not lower, though each of them was found to lower in a trial."""

from __future__ import annotations

from collections.abc import Callable

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.lower.backend import PartitionJob


def at_fault(job: PartitionJob, lower: Callable[[PartitionJob], object]) -> tuple[tuple[str, ...], str]:
    """The smallest run of the partition's nodes that does not lower, found by halving, and what lowering it says.

    `job` itself is known not to lower. Where both halves lower, their nodes only fail together: all are given.
    """
    failed, error = job, ""
    while len(failed.nodes) > 1:
        middle = len(failed.nodes) // 2
        for half in (failed.nodes[:middle], failed.nodes[middle:]):
            part = _part(job, half)
            told = _failure(part, lower)
            if told is not None:
                failed, error = part, told
                break
        else:
            break
    return failed.nodes, error


def _failure(job: PartitionJob, lower: Callable[[PartitionJob], object]) -> str | None:
    try:
        lower(job)
    except HeteroccError as error:
        return error.message
    return None


def _part(job: PartitionJob, names: tuple[str, ...]) -> PartitionJob:
    """Some of a partition's nodes, neighbours in run order, as a partition."""
    graph = job.model.graph
    nodes = [graph.node_by_name[name] for name in names]
    written = {v for n in nodes for v in n.outputs}
    inputs = [v for n in nodes for v in n.inputs if v not in written and v not in graph.constants]
    inside = frozenset(names)
    read_elsewhere = {v for n in graph.nodes if n.name not in inside for v in n.inputs}
    outputs = [v for n in nodes for v in n.outputs if v in read_elsewhere or v in graph.outputs]
    return PartitionJob("blame", job.model, job.device, names, tuple(dict.fromkeys(inputs)), tuple(outputs))
