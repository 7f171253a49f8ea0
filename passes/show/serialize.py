"""Complete plans as JSON: graph, machine, affinity and partitions, so that a pass can be run again elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from heterocc.passes.affinity import Affinity, Rule
from heterocc.passes.cost import Link, Machine, PartitionRules, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.objective import Goal
from heterocc.passes.plan import Partition, Plan
from heterocc.passes.show.printer import print_plan

PLAN_FORMAT = 1
"""Version of the JSON form; a reader refuses any other."""

_DATA = "# data"


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan with its graph, machine and affinity as JSON-compatible data in a fixed order."""
    graph, machine = plan.graph, plan.machine
    return {
        "format": PLAN_FORMAT,
        "graph": {
            "name": graph.name,
            "inputs": list(graph.inputs),
            "outputs": list(graph.outputs),
            "constants": sorted(graph.constants),
            "values": [asdict(v) for v in graph.values.values()],
            "nodes": [asdict(n) for n in graph.nodes],
        },
        "machine": {
            "devices": [asdict(d) for d in machine.devices],
            "refusals": {d: dict(reasons) for d, reasons in machine.refusals.items()},
            "work": dict(machine.work),
            "links": [[*pair, link and asdict(link)] for pair, link in machine.links.items()],
            "default_link": machine.default_link and asdict(machine.default_link),
            "seconds": {d: dict(times) for d, times in machine.seconds.items()},
        },
        "affinity": {
            "mode": plan.affinity.mode,
            "rules": [asdict(r) for r in plan.affinity.rules],
            "without": sorted(plan.affinity.without),
        },
        "pins": dict(plan.pins),
        "partitions": [asdict(p) for p in plan.partitions],
        **({} if plan.goal is None else {"goal": asdict(plan.goal)}),
    }


def plan_from_json(data: dict[str, Any]) -> Plan:
    """The plan in the output of `plan_to_json`. Raises ValueError, KeyError or TypeError for any other data."""
    if data.get("format") != PLAN_FORMAT:
        raise ValueError(f"plan format {data.get('format')} is not {PLAN_FORMAT}")
    graph, machine, affinity = data["graph"], data["machine"], data["affinity"]
    return Plan(
        Graph(
            name=graph["name"],
            nodes=tuple(_record(Node, n) for n in graph["nodes"]),
            values={v["name"]: _record(Value, v) for v in graph["values"]},
            inputs=tuple(graph["inputs"]),
            outputs=tuple(graph["outputs"]),
            constants=frozenset(graph["constants"]),
        ),
        Machine(
            devices=tuple(_device(d) for d in machine["devices"]),
            refusals=machine["refusals"],
            work=machine["work"],
            links={(source, target): link and _record(Link, link) for source, target, link in machine["links"]},
            default_link=machine["default_link"] and _record(Link, machine["default_link"]),
            seconds=machine.get("seconds", {}),
        ),
        tuple(_record(Partition, p) for p in data["partitions"]),
        data["pins"],
        Affinity(
            affinity["mode"],
            tuple(_record(Rule, r) for r in affinity["rules"]),
            frozenset(affinity.get("without", ())),
        ),
        goal=_record(Goal, data["goal"]) if "goal" in data else None,
    )


def write_reproducer(plan: Plan, pass_spec: str) -> str:
    """The text of a reproducer: the plan for readers, then the data with which `pass_spec` can be run again."""
    head = f"# heterocc reproducer: the input of pass {pass_spec}\n"
    data = json.dumps({"pass": pass_spec, "plan": plan_to_json(plan)}, indent=1, ensure_ascii=True)
    return f"{head}{print_plan(plan)}{_DATA}\n{data}\n"


def read_reproducer(text: str) -> tuple[Plan, str]:
    """The plan and pass spec of a reproducer. Raises ValueError, KeyError or TypeError for any other text."""
    _, marker, data = text.partition(f"\n{_DATA}\n")
    if not marker:
        raise ValueError(f"the line '{_DATA}' is missing")
    record = json.loads(data)
    return plan_from_json(record["plan"]), record["pass"]


def _device(data: dict[str, Any]) -> PlacementDevice:
    rules = dict(data.get("rules", {}))
    rules["only_beside"] = tuple((op_type, tuple(near)) for op_type, near in rules.get("only_beside", ()))
    device: PlacementDevice = _record(PlacementDevice, {**data, "rules": _record(PartitionRules, rules)})
    return device


def _record(kind: type[Any], data: dict[str, Any]) -> Any:
    """A dataclass from its fields, with lists converted back to tuples."""
    names = {f.name for f in fields(kind)}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names})
