"""Memory: a placement in which constants and results fit on every device, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations

import numpy as np

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.passes.graph import Graph
from heterocc.passes.optimum import exact
from heterocc.passes.optimum.problem import Labels, Problem
from heterocc.passes.optimum.search import MOST_NODES_EXACT
from heterocc.passes.placement import Budget, place

_MOST_ORDERS = 24
"""Orders of devices in which nodes are placed by first fit."""


def find_room(problem: Problem, pins: Mapping[str, str], work: float) -> Labels:
    """Labels that fit on all devices, of the least cost among those that were found.

    First fit, with the devices in several orders and the nodes in the graph's order and by size, then for small graphs
    an exhaustive search with `work` as its limit, which also proves that there are none.
    Raises UnsupportedOpError (HC201) with the reason if nothing fits, or nothing was found.
    """
    _require_room(problem, pins)
    found = [labels for labels in _first_fits(problem, pins) if np.isfinite(problem.total(labels))]
    if found:
        return min(found, key=problem.total)
    certain = False
    if work > 0 and len(problem.graph.nodes) <= MOST_NODES_EXACT:
        labels, certain = exact.fitting(problem, work)
        if labels is not None:
            return labels
    needed, held = _needed(problem), _limits(problem)
    what = "cannot be divided so that it fits" if certain else "was not divided so that it fits"
    raise UnsupportedOpError(
        f"the model {what} in the devices' memory: it needs {needed} bytes, and they have {held}",
        where=problem.graph.name,
        hint="raise the devices' limits on memory, pin fewer nodes, or list another device",
    )


def _require_room(problem: Problem, pins: Mapping[str, str]) -> None:
    """Raise UnsupportedOpError for a node that no device can run or hold, and for devices too small together."""
    graph, machine = problem.graph, problem.machine
    empty = Budget(graph, machine)
    for node, row in zip(graph.nodes, problem.seconds, strict=True):
        able = [d for d, seconds in zip(machine.devices, row, strict=True) if np.isfinite(seconds)]
        if not able:
            place(graph, machine, pins)  # raises with a reason for each device
        if not any(empty.fits(d.name, node) for d in able):
            reasons = "; ".join(f"{d.name}: {empty.why_full(d.name, node)}" for d in able)
            raise UnsupportedOpError(
                f"{node.op_type} '{node.label}' fits on no device ({reasons})",
                where=f"{graph.name}: node '{node.label}' ({node.op_type})",
                hint="raise the devices' limits on memory, or list another device",
            )
    limits = [d.memory for d in machine.devices]
    needed = _needed(problem)
    if all(limit is not None for limit in limits) and needed > sum(limit or 0 for limit in limits):
        raise UnsupportedOpError(
            f"the model needs {needed} bytes for its constants and results, and the devices have {_limits(problem)}",
            where=graph.name,
            hint="raise the devices' limits on memory, or list another device",
        )


def _needed(problem: Problem) -> int:
    """Bytes of all results, and of all constants that are read, each once."""
    graph = problem.graph
    constants = {v for n in graph.nodes for v in n.inputs if v in graph.constants}
    return sum(graph.values[v].nbytes for v in constants) + sum(
        graph.values[v].nbytes for n in graph.nodes for v in n.outputs
    )


def _limits(problem: Problem) -> str:
    return ", ".join(f"{d.name} {d.memory}" for d in problem.machine.devices if d.memory is not None)


def _first_fits(problem: Problem, pins: Mapping[str, str]) -> Iterator[Labels]:
    devices = range(problem.devices)
    by_size = sorted(range(len(problem.graph.nodes)), key=lambda n: -_bytes_of(problem.graph, n))
    for order in islice(permutations(devices), _MOST_ORDERS):
        machine = replace(problem.machine, devices=tuple(problem.machine.devices[d] for d in order))
        try:
            labels = problem.labels_of(place(problem.graph, machine, pins))
        except UnsupportedOpError:
            pass
        else:
            yield labels
        packed = _packed(problem, order, by_size)
        if packed is not None:
            yield packed


def _packed(problem: Problem, order: Sequence[int], nodes: Sequence[int]) -> Labels | None:
    """First fit of nodes in the given order, which regards no links."""
    budget = Budget(problem.graph, problem.machine)
    labels = np.zeros(len(nodes), np.int64)
    able = np.isfinite(problem.seconds)
    names = [d.name for d in problem.machine.devices]
    for number in nodes:
        node = problem.graph.nodes[number]
        device = next((d for d in order if able[number, d] and budget.fits(names[d], node)), None)
        if device is None:
            return None
        budget.add(names[device], node)
        labels[number] = device
    return labels


def _bytes_of(graph: Graph, number: int) -> int:
    node = graph.nodes[number]
    constants = {v for v in node.inputs if v in graph.constants}
    return sum(graph.values[v].nbytes for v in (*constants, *node.outputs))
