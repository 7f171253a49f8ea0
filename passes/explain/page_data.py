"""The data of a report: the model, its placement, estimates and measured times, in a form that takes little room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from heterocc.passes.cost import PlacementDevice
from heterocc.passes.explain.details import Details
from heterocc.passes.explain.explanation import Explanation, micros
from heterocc.passes.explain.measured import Measured, node_times
from heterocc.passes.explain.reasons import Alternative, NodeReason
from heterocc.passes.graph import Graph, Node
from heterocc.passes.plan import UNPLACED
from heterocc.passes.show.printer import summary

FORMAT = 2
"""Version of the data; a page compares itself with reports of its own version only."""

Bound = Literal["compute", "memory", "launch"]


class _Table:
    """Texts or records that many nodes share, stored once and named by number."""

    def __init__(self) -> None:
        self._number: dict[Any, int] = {}

    def of(self, item: Any) -> int:
        return self._number.setdefault(item, len(self._number))

    def items(self) -> list[Any]:
        return list(self._number)


def report_data(found: Explanation, measured: Measured | None = None) -> dict[str, Any]:
    """The data of the page as JSON-compatible data; times are in microseconds."""
    plan = found.plan
    graph = plan.graph
    texts, attributes = _Table(), _Table()
    number = {n.name: i for i, n in enumerate(graph.nodes)}
    values = {name: i for i, name in enumerate(_values(graph))}
    devices = {d.name: d for d in plan.machine.devices}
    estimates = {r.node: r.seconds for r in found.nodes}
    steps = () if measured is None else measured.steps
    times, kernels = node_times(graph, steps, estimates)
    place_of = {place: i for i, place in enumerate(p for p, s in enumerate(steps) if s.kind == "kernel")}

    def other(alternative: Alternative) -> list[Any]:
        reason = None if alternative.reason is None else texts.of(alternative.reason)
        return [alternative.device, reason, micros(alternative.seconds)]

    def node_data(node: Node, reason: NodeReason) -> dict[str, Any]:
        work = plan.machine.work.get(node.name)
        moved = _moved(graph, node)
        return {
            "label": reason.label,
            "module": found.details.modules.get(node.name),
            "op": reason.op_type,
            "device": reason.device,
            "part": reason.partition,
            "why": reason.why,
            "text": texts.of(reason.sentence),
            "us": micros(reason.seconds),
            "measured": micros(times.get(node.name)),
            "kernels": [place_of[place] for place in kernels.get(node.name, ())],
            "in": [values[v] for v in node.inputs],
            "out": [values[v] for v in node.outputs],
            "flops": work,
            "bytes": moved,
            "bound": None if reason.device == UNPLACED else _bound(devices[reason.device], work, moved),
            "attributes": attributes.of(tuple(found.details.attributes.get(node.name, {}).items())),
            "others": [other(o) for o in reason.others],
        }

    nodes = [node_data(node, reason) for node, reason in zip(graph.nodes, found.nodes, strict=True)]
    by_kernel: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for kernel in node["kernels"]:
            by_kernel.setdefault(kernel, []).append(i)
    return {
        "format": FORMAT,
        "model": graph.name,
        "policy": found.policy,
        "summary": summary(plan),
        "notes": list(found.notes),
        "devices": [_device(d) for d in plan.machine.devices],
        "plans": [o.to_json() for o in found.others],
        "partitions": [
            {
                "device": p.device,
                "nodes": len(p.nodes),
                "us": micros(p.seconds),
                "start": micros(p.start),
                "in": p.bytes_in,
                "out": p.bytes_out,
            }
            for p in found.partitions
        ],
        "transfers": [
            {
                "value": found.details.values.get(t.value, t.value),
                "from": t.source,
                "to": t.target,
                "bytes": t.nbytes,
                "us": micros(t.seconds),
                "start": micros(t.start),
                "writer": number[t.writer],
                "readers": [number[r] for r in t.readers],
                "text": t.sentence,
            }
            for t in found.transfers
        ],
        "measured": None if measured is None else _measured(measured, place_of, by_kernel, found.details),
        "nodes": nodes,
        "inputs": [values[v] for v in graph.inputs],
        "outputs": [values[v] for v in graph.outputs],
        "values": [_value(graph, name, found.details) for name in values],
        "attributes": attributes.items(),
        "texts": texts.items(),
    }


def _values(graph: Graph) -> dict[str, None]:
    used = dict.fromkeys((*graph.inputs, *graph.outputs))
    for node in graph.nodes:
        used.update(dict.fromkeys((*node.inputs, *node.outputs)))
    return used


def _value(graph: Graph, name: str, details: Details) -> list[Any]:
    value = graph.values[name]
    shape = None if value.shape is None else ["?" if d is None else d for d in value.shape]
    own = details.values.get(name, name)
    return [own, value.dtype, shape, value.nbytes, int(name in graph.constants), *details.ranges.get(name, ())]


def _moved(graph: Graph, node: Node) -> int | None:
    """The bytes that a node reads and writes; None if a size is known only at run time."""
    total = 0
    for name in dict.fromkeys((*node.inputs, *node.outputs)):
        value = graph.values[name]
        if value.is_opaque or not value.is_static:
            return None
        total += value.nbytes
    return total


def _bound(device: PlacementDevice, work: float | None, moved: int | None) -> Bound | None:
    """What takes the most of a node's estimated time: arithmetic, memory traffic or the launch."""
    if work is None or moved is None:
        return None
    parts: dict[Bound, float] = {
        "compute": work / device.flops,
        "memory": moved / device.bandwidth,
        "launch": device.launch,
    }
    return max(parts, key=lambda part: parts[part])


def _device(device: PlacementDevice) -> dict[str, Any]:
    kept = ("name", "kind", "flops", "bandwidth")
    return {"launch": micros(device.launch), **{k: v for k, v in asdict(device).items() if k in kept}}


def _measured(
    measured: Measured, place_of: Mapping[int, int], by_kernel: Mapping[int, list[int]], details: Details
) -> dict[str, Any]:
    """The kernels with their nodes, and the other steps; moments name a step of one of the two lists by number."""
    steps = measured.steps
    others = {place: i for i, place in enumerate(p for p, s in enumerate(steps) if s.kind != "kernel")}
    tracks = _Table()
    moments = [
        [
            int(m.step in place_of),
            place_of.get(m.step, others.get(m.step)),
            tracks.of(m.track),
            micros(m.begin),
            micros(m.end - m.begin),
        ]
        for m in measured.moments
    ]
    return {
        "runs": measured.runs,
        "us": micros(measured.seconds),
        "note": measured.note,
        "kernels": [
            {
                "name": steps[place].name,
                "symbol": steps[place].kernel,
                "device": steps[place].device,
                "part": steps[place].partition,
                "us": micros(steps[place].seconds),
                "calls": steps[place].calls,
                "clock": steps[place].clock,
                "nodes": by_kernel.get(i, []),
            }
            for place, i in place_of.items()
        ],
        "steps": [
            {
                "kind": steps[place].kind,
                "name": details.values.get(steps[place].name, steps[place].name)
                if steps[place].kind == "transfer"
                else steps[place].name,
                "device": steps[place].device,
                "us": micros(steps[place].seconds),
            }
            for place in others
        ],
        "tracks": tracks.items(),
        "moments": moments,
    }
