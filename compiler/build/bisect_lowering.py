"""A search for the nodes because of which a partition cannot be lowered, although each lowered in its trial."""

from __future__ import annotations

from collections.abc import Callable

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.lower.backend import PartitionJob


def at_fault(job: PartitionJob, lower: Callable[[PartitionJob], object]) -> tuple[tuple[str, ...], str]:
    """The smallest sequence of the partition's nodes that cannot be lowered, found by bisection, and its error.

    `job` itself must fail to lower. If both halves can be lowered, the nodes fail only together, and all are returned.
    The error is empty if no part of `job` failed.
    """
    failed, error = job, ""
    while len(failed.nodes) > 1:
        middle = len(failed.nodes) // 2
        for half in (failed.nodes[:middle], failed.nodes[middle:]):
            part = _part(job, half)
            message = _failure(part, lower)
            if message is not None:
                failed, error = part, message
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
    """A partition of some consecutive nodes of another."""
    graph = job.model.graph
    nodes = [graph.node_by_name[name] for name in names]
    written = {v for n in nodes for v in n.outputs}
    inputs = [v for n in nodes for v in n.inputs if v not in written and v not in graph.constants]
    inside = frozenset(names)
    read_elsewhere = {v for n in graph.nodes if n.name not in inside for v in n.inputs}
    outputs = [v for n in nodes for v in n.outputs if v in read_elsewhere or v in graph.outputs]
    return PartitionJob("blame", job.model, job.device, names, tuple(dict.fromkeys(inputs)), tuple(outputs))
