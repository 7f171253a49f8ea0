"""The explanation of a plan as one HTML page that needs nothing else: graph, timeline, tables."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heterocc.passes.explain.explanation import Explanation, micros
from heterocc.passes.explain.layout import positions
from heterocc.passes.explain.reasons import Alternative
from heterocc.passes.show.printer import summary

_PAGE = Path(__file__).parent / "page"


@dataclass(frozen=True, slots=True)
class Timed:
    """A measured step of a run, in run order: a partition (`p3`), a transfer or a kernel, with its seconds.

    `nodes` are labels of the nodes that a kernel computes.
    """

    kind: Literal["partition", "transfer", "kernel"]
    name: str
    device: str
    partition: str
    seconds: float
    nodes: tuple[str, ...] = ()


def report_html(found: Explanation, timed: Sequence[Timed] = ()) -> str:
    """The page. `timed` are measured steps, which replace the estimates in the timeline.

    It loads nothing: script, style and data are inside, and a policy in its head forbids any request.
    """
    title = html.escape(f"{found.plan.graph.name}: placement")
    data = json.dumps(report_data(found, timed), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page = (_PAGE / "page.html").read_text(encoding="utf-8")
    for mark, text in (
        ("@TITLE@", title),
        ("@STYLE@", (_PAGE / "page.css").read_text(encoding="utf-8")),
        ("@SCRIPT@", (_PAGE / "page.js").read_text(encoding="utf-8")),
        ("@DATA@", data),
    ):
        page = page.replace(mark, text, 1)
    return page


def report_data(found: Explanation, timed: Sequence[Timed] = ()) -> dict[str, Any]:
    """The data of the page; sentences that many nodes share are stored once, and named by number."""
    plan = found.plan
    texts: dict[str, int] = {}

    def text(sentence: str) -> int:
        return texts.setdefault(sentence, len(texts))

    def other(alternative: Alternative) -> list[Any]:
        reason = None if alternative.reason is None else text(alternative.reason)
        return [alternative.device, reason, micros(alternative.seconds)]

    number = {n.name: i for i, n in enumerate(plan.graph.nodes)}
    nodes = [
        {
            "label": r.label,
            "op": r.op_type,
            "device": r.device,
            "part": r.partition,
            "why": r.why,
            "text": text(r.sentence),
            "us": micros(r.seconds),
            "others": [other(o) for o in r.others],
            "at": [round(column, 2), layer],
        }
        for r, (column, layer) in zip(found.nodes, positions(plan.graph), strict=True)
    ]
    edges = [[source, reader] for reader, reads in enumerate(plan.graph.sources) for source in reads]
    return {
        "model": plan.graph.name,
        "policy": found.policy,
        "summary": summary(plan),
        "notes": list(found.notes),
        "devices": [d.name for d in plan.machine.devices],
        "plans": [o.to_json() for o in found.others],
        "partitions": [
            {
                "device": p.device,
                "nodes": len(p.nodes),
                "us": micros(p.seconds),
                "in": p.bytes_in,
                "out": p.bytes_out,
            }
            for p in found.partitions
        ],
        "transfers": [
            {
                "value": t.value,
                "from": t.source,
                "to": t.target,
                "bytes": t.nbytes,
                "us": micros(t.seconds),
                "writer": number[t.writer],
                "readers": [number[r] for r in t.readers],
                "text": t.sentence,
            }
            for t in found.transfers
        ],
        "timeline": _measured(timed) if timed else _estimated(found),
        "measured": bool(timed),
        "kernels": [
            {"name": t.name, "device": t.device, "part": t.partition, "us": micros(t.seconds), "nodes": list(t.nodes)}
            for t in timed
            if t.kind == "kernel"
        ],
        "nodes": nodes,
        "edges": edges,
        "texts": list(texts),
    }


def _estimated(found: Explanation) -> list[dict[str, Any]]:
    partitions, transfers = found.costs.timeline
    steps = [
        {
            "kind": "partition",
            "name": f"p{p.index}",
            "device": p.device,
            "start": micros(p.start),
            "us": micros(p.seconds),
        }
        for p in partitions
    ]
    steps += [
        {
            "kind": "transfer",
            "name": t.transfer.value,
            "device": t.transfer.target,
            "from": t.transfer.source,
            "start": micros(t.start),
            "us": micros(t.seconds),
        }
        for t in transfers
    ]
    return steps


def _measured(timed: Sequence[Timed]) -> list[dict[str, Any]]:
    clock = 0.0
    steps = []
    for step in timed:
        if step.kind == "kernel":
            continue
        steps.append(
            {
                "kind": step.kind,
                "name": step.name,
                "device": step.device,
                "start": micros(clock),
                "us": micros(step.seconds),
            }
        )
        clock += step.seconds
    return steps
