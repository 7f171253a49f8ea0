"""Placement by a table of costs: times of nodes and links from a file, without any device and without lowering.

The cost of a plan, in microseconds, is the time of every node on its device, a transfer for every value and each device
that it is sent to, and the launch of every partition.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterocc.artifacts.errors import CostTableError, FileMissingError, UnsupportedOpError
from heterocc.artifacts.files.opening import open_file
from heterocc.artifacts.files.reading import note_read, reading
from heterocc.artifacts.files.texts import parse_json
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.as_written import graph_as_written
from heterocc.compiler.importer.reading.source import AnyModel, as_source
from heterocc.compiler.placement.run_passes import require_no_objective, run_pipeline
from heterocc.passes.base import Pass, parse_pipeline, policy_pipeline
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.estimate import device_seconds, plan_seconds
from heterocc.passes.graph import Graph
from heterocc.passes.objective import Goal
from heterocc.passes.optimum.problem import Problem
from heterocc.passes.optimum.search import lower_bound
from heterocc.passes.optimum.timeline import timeline
from heterocc.passes.placement import device_bytes
from heterocc.passes.plan import Plan

MAX_FILE_BYTES = 1 << 30

_Text = Annotated[str, Field(min_length=1)]
_Microseconds = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class LinkCosts(BaseModel):
    """A link in one direction."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    latency_us: _Microseconds = 0.0
    gb_per_s: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class CostTable(BaseModel):
    """A table of costs.

    `devices` are names in order of priority. `node_us[node][device]` is the time of a node in microseconds; a device
    without an entry cannot run it. `link["A->B"]` is the link from A to B; one that is missing cannot be used.
    `launch_us[device]` is the time of each partition, `memory_bytes[device]` a limit on constants and outputs of nodes,
    `pin[node]` the device that a node must be on.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    devices: Annotated[list[_Text], Field(min_length=1, max_length=64)]
    node_us: dict[_Text, dict[_Text, _Microseconds]]
    link: dict[_Text, LinkCosts]
    launch_us: dict[_Text, _Microseconds] = {}
    memory_bytes: dict[_Text, Annotated[int, Field(ge=0)] | None] = {}
    pin: dict[_Text, _Text] = {}


def load_cost_table(path: Path) -> CostTable:
    """The table in a JSON file. Raises FileMissingError (HC101), and CostTableError (HC113) with the key at fault."""
    note_read(path, "the cost table")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CostTableError("the cost table is larger than 1 GB", where=str(path), hint="give a smaller file")
        with open_file(path) as file:
            text = file.read().decode()
    except OSError as error:
        pass_foreign(error)
        raise FileMissingError(f"cannot read the cost table: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise CostTableError("the cost table is not UTF-8 text", where=str(path), hint=_HINT) from error
    try:
        data = parse_json(text, object_pairs_hook=_unique)
    except ValueError as error:
        pass_foreign(error)
        raise CostTableError(f"the cost table is not valid JSON: {error}", where=str(path), hint=_HINT) from error
    try:
        table = CostTable.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        keys = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise CostTableError(f"key '{keys}': {first['msg']}", where=str(path), hint=_HINT) from error
    _check_names(table, path)
    return table


_HINT = "a cost table has the keys devices, node_us and link, and may have launch_us, memory_bytes and pin"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"key '{twice}' is given twice")
    return found


def _check_names(table: CostTable, path: Path) -> None:
    """Raise CostTableError (HC113) for a device that is not listed, and for a malformed link."""

    def fail(message: str, hint: str) -> None:
        raise CostTableError(message, where=str(path), hint=hint)

    listed = f"listed devices: {', '.join(table.devices)}"
    if len(set(table.devices)) < len(table.devices):
        fail("a device is listed twice in 'devices'", "list every device once")
    for key in table.link:
        ends = key.split("->")
        if len(ends) != 2 or not set(ends) <= set(table.devices) or ends[0] == ends[1]:
            fail(f"'{key}' in 'link' does not name a link", f"write FROM->TO with two different devices; {listed}")
    named = [
        *(("launch_us", d) for d in table.launch_us),
        *(("memory_bytes", d) for d in table.memory_bytes),
        *((f"pin.{node}", d) for node, d in table.pin.items()),
        *((f"node_us.{node}", d) for node, row in table.node_us.items() for d in row),
    ]
    for place, device in named:
        if device not in table.devices:
            fail(f"'{place}' names the device '{device}', which is not listed", listed)


def machine_of(table: CostTable, graph: Graph) -> Machine:
    """The machine that a table describes. Raises CostTableError (HC113) for names of nodes that the graph lacks."""
    unknown = [n for n in (*table.node_us, *table.pin) if n not in graph.node_by_name]
    if unknown:
        raise CostTableError(
            f"the model has no node '{unknown[0]}'",
            where=graph.name,
            hint="name nodes as in the model; unnamed ones are TYPE_NUMBER, by their number in the file",
        )
    devices = tuple(
        PlacementDevice(d, memory=table.memory_bytes.get(d), overhead=table.launch_us.get(d, 0.0) / 1e6, launch=0.0)
        for d in table.devices
    )
    rows = _rows(table, graph)
    return Machine(
        devices,
        refusals={
            d: {n: "no time in the cost table" for n, row in rows.items() if d not in row} for d in table.devices
        },
        links={
            (a, b): Link(costs.latency_us / 1e6, costs.gb_per_s * 1e9)
            for key, costs in table.link.items()
            for a, b in [key.split("->")]
        },
        default_link=None,
        seconds={d: {n: row[d] / 1e6 for n, row in rows.items() if d in row} for d in table.devices},
    )


def _rows(table: CostTable, graph: Graph) -> dict[str, dict[str, float]]:
    return {n.name: table.node_us.get(n.name, {}) for n in graph.nodes}


def partition_by_table(
    model: AnyModel,
    cost_table: str | Path,
    *,
    policy: str = "optimal",
    objective: str = "latency",
    passes: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Place the nodes of a model, taken as it is written, by a table of costs, without any device.

    Returns the plan as JSON-compatible data, with costs in microseconds (docs/placement.md), and the values whose size
    is not known and counts as 0. Raises an InputError (HC1xx) for an error in the model, the table or the options,
    UnsupportedOpError (HC201) for a node that no device can run.
    """
    if passes is not None:
        require_no_objective(objective)
    pipeline = policy_pipeline(policy, objective) if passes is None else parse_pipeline(passes)
    source, path = as_source(model, None), Path(cost_table)
    files: dict[str | os.PathLike[str], str] = {path: "the cost table"}
    with reading(files if source.data is not None else {**files, source.path: "the model"}):
        table = load_cost_table(path)
        graph, unknown = graph_as_written(source, shapes, table.node_us, dims)
        return place_by_table(graph, table, pipeline, policy if passes is None else passes), unknown


def place_by_table(graph: Graph, table: CostTable, passes: tuple[Pass, ...], policy: str) -> dict[str, Any]:
    """Place a graph by a table of costs, and describe the plan as JSON-compatible data.

    Raises CostTableError (HC113) and what the passes raise, UnsupportedOpError (HC201) for one.
    """
    machine = machine_of(table, graph)
    plan = Plan(graph, machine, Plan.initial(graph, machine).partitions, _pins(table, machine, graph))
    started = time.perf_counter()
    try:
        plan = run_pipeline(plan, passes)
    except UnsupportedOpError as error:
        if type(error) is UnsupportedOpError and any(not row for row in _rows(table, graph).values()):
            error.hint = "give every node a time in node_us, on one device at least"
        raise
    seconds = time.perf_counter() - started
    cost = plan_seconds(plan) or 0.0
    least = min(_bound(plan), cost)
    goal = plan.goal or Goal("latency", cost, least)
    unit = 1 if goal.objective == "transfers" else 1e6
    times = timeline(plan) if goal.objective == "overlap" else None
    return {
        "partitions": [
            {
                "device": part.device,
                "nodes": list(part.nodes),
                "inputs": list(plan.inputs_of(index)),
                "outputs": list(plan.outputs_of(index)),
                **({} if times is None else {"start_us": times.starts[index] * 1e6, "end_us": times.ends[index] * 1e6}),
            }
            for index, part in enumerate(plan.partitions)
        ],
        "transfers": [{"value": t.value, "from": t.source, "to": t.target, "bytes": t.nbytes} for t in plan.transfers],
        "cost_us": cost * 1e6,
        "lower_bound_us": least * 1e6,
        "objective": {"name": goal.objective, "value": goal.value * unit, "lower_bound": goal.bound * unit},
        "device_us": {device: seconds * 1e6 for device, seconds in device_seconds(plan).items()},
        "device_bytes": device_bytes(graph, machine, plan.device_of),
        "policy": policy,
        "seconds": seconds,
    }


def _pins(table: CostTable, machine: Machine, graph: Graph) -> Mapping[str, str]:
    for node, device in table.pin.items():
        reason = machine.refusal(device, node)
        if reason is not None:
            raise CostTableError(
                f"node '{node}' is pinned to '{device}', which cannot run it: {reason}",
                where=graph.name,
                hint=f"give node_us.{node}.{device}, or pin the node to another device",
            )
    return table.pin


def _bound(plan: Plan) -> float:
    if plan.bound is not None:
        return plan.bound
    if not plan.graph.nodes:
        return 0.0
    problem = Problem.of(plan.graph, plan.machine, plan.pins)
    labels = problem.labels_of(plan.device_of)
    return lower_bound(problem, labels).seconds
