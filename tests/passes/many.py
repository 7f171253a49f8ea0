"""Random graphs in memory, made fast, and what every pass must keep on them.

Usage: python -m tests.passes.many [--count 100000] [--first 0] [--minutes 60]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.estimate import plan_seconds
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.greedy import Greedy
from heterocc.passes.manual import Manual
from heterocc.passes.merge import Merge
from heterocc.passes.mincut import MinCut
from heterocc.passes.objective import OBJECTIVES
from heterocc.passes.plan import Plan

OPTIMAL = tuple(MinCut(effort=0.0, objective=objective) for objective in OBJECTIVES)
OPTIMAL_EVERY = 8
OBJECTIVES_EVERY = 64
"""Every so many graphs are placed by `mincut`, and by one of its other objectives, which take more time."""


def random_start(seed: int, most_nodes: int = 14) -> Plan:
    """An unplaced graph on a machine of up to four devices; a sixth each has pins, little memory, a missing link."""
    rng = random.Random(seed)
    count = rng.randint(1, most_nodes)
    devices = "ABCD"[: rng.randint(1, 4)]
    values = {"x": Value("x", "float32", (64,)), "k": Value("k", "float32", (rng.randint(1, 5_000),))}
    nodes: list[Node] = []
    near = rng.choice([2, 4, 14])
    for i in range(count):
        reads = ["x" if i == 0 or rng.random() < 0.1 else f"v{rng.randrange(max(0, i - near), i)}"]
        reads += [f"v{rng.randrange(i)}" for _ in range(rng.choice([0, 0, 1, 2])) if i]
        if rng.random() < 0.2:
            reads.append("k")
        writes = (f"v{i}", f"w{i}") if rng.random() < 0.1 else (f"v{i}",)
        for value in writes:
            integer = rng.random() < 0.1
            shape = (rng.choice([1, 4]),) if integer else (rng.choice([1, 100, 10_000]),)
            values[value] = Value(value, "int64" if integer else "float32", shape)
        nodes.append(Node(f"n{i}", rng.choice(["Add", "Reshape", "Conv"]), tuple(dict.fromkeys(reads)), writes))
    read = {v for node in nodes for v in node.inputs}
    outputs = tuple(v for node in nodes for v in node.outputs if v not in read)
    graph = Graph("random", tuple(nodes), values, ("x",), outputs, frozenset(["k"]))
    memory = rng.randint(20_000, 120_000) if rng.random() < 1 / 6 else None
    models = tuple(
        PlacementDevice(
            d,
            "cpu" if d == "B" else "opencl",
            memory=memory if d != "B" else None,
            overhead=rng.choice([0.0, 2e-6, 2e-5]),
            last_resort=d == "D" and rng.random() < 0.5,
        )
        for d in devices
    )
    refusals = {
        d: {n.name: "no" for n in nodes if rng.random() < 0.2} for d in devices if d != "B" and len(devices) > 1
    }
    links: dict[tuple[str, str], Link | None] = {
        (a, b): Link(rng.choice([0.0, 1e-6, 1e-5]), rng.choice([1e9, 1e10])) for a in devices for b in devices if a != b
    }
    if len(devices) > 2 and rng.random() < 1 / 6:
        links["A", "C"] = None
    seconds = {d: {n.name: rng.randrange(50) * 1e-6 for n in nodes} for d in devices}
    machine = Machine(models, refusals, {}, links, Link(), seconds)
    start = Plan.initial(graph, machine)
    if rng.random() > 1 / 6:
        return start
    free = {n.name: [d for d in devices if n.name not in refusals.get(d, {})] for n in nodes}
    pins = {name: rng.choice(able) for name, able in free.items() if able and rng.random() < 0.2}
    return start.with_partitions(start.partitions, pins)


def faults(plan: Plan) -> list[str]:
    """What is wrong with a plan, without use of the checks of its class."""
    graph, machine = plan.graph, plan.machine
    found = []
    turn: dict[str, int] = {}
    for index, part in enumerate(plan.partitions):
        found += [f"{name} is placed twice" for name in part.nodes if name in turn]
        turn.update(dict.fromkeys(part.nodes, index))
        found += [
            f"{part.device} refuses {name}" for name in part.nodes if name in machine.refusals.get(part.device, {})
        ]
    found += [f"{n.name} is not placed" for n in graph.nodes if n.name not in turn]
    if found:
        return found
    device = {name: plan.partitions[index].device for name, index in turn.items()}
    writer = {v: n.name for n in graph.nodes for v in n.outputs}
    used: Counter[str] = Counter()
    held: set[tuple[str, str]] = set()
    for node in graph.nodes:
        here = device[node.name]
        used[here] += sum(graph.values[v].nbytes for v in node.outputs)
        for value in node.inputs:
            if value in graph.constants and (here, value) not in held:
                held.add((here, value))
                used[here] += graph.values[value].nbytes
            source = writer.get(value)
            if source is None:
                continue
            if turn[source] > turn[node.name]:
                found.append(f"{node.name} runs before {source}")
            if device[source] != here and machine.link(device[source], here) is None:
                found.append(f"{value} has no link from {device[source]} to {here}")
    found += [f"{n} is pinned to {d}" for n, d in plan.pins.items() if device[n] != d]
    found += [f"{d.name} is too small" for d in machine.devices if d.memory is not None and used[d.name] > d.memory]
    return found


def check(seed: int) -> int:
    """Run all passes on a random graph, and return the number of plans. Raises AssertionError for a fault."""
    start = random_start(seed)
    made = 0

    def sound(plan: Plan, name: str) -> Plan:
        nonlocal made
        wrong = faults(plan)
        assert not wrong, f"seed {seed}, {name}: {wrong}"
        made += 1
        return plan

    try:
        greedy = sound(Greedy().run(start), "greedy")
    except UnsupportedOpError:
        greedy = None
    if greedy is not None:
        manual = sound(Manual().run(greedy), "manual")
        merged = sound(Merge().run(manual), "merge")
        sound(Merge(islands=False).run(manual), "merge without islands")
        assert len(merged.partitions) <= len(manual.partitions), f"seed {seed}: merge adds partitions"
        before, after = plan_seconds(manual), plan_seconds(merged)
        assert before is not None and after is not None
        assert after <= before + 2e-9, f"seed {seed}: merge adds {after - before} s"
    chosen = OPTIMAL[:1] if seed % OPTIMAL_EVERY == 0 else ()
    if seed % OBJECTIVES_EVERY == 0:
        chosen = (*chosen, OPTIMAL[1 + seed // OBJECTIVES_EVERY % (len(OPTIMAL) - 1)])
    for pass_ in chosen:
        try:
            plan = sound(pass_.run(start), repr(pass_))
        except UnsupportedOpError:
            continue
        if greedy is not None and pass_ == OPTIMAL[0]:
            cost, best = plan_seconds(plan), plan_seconds(greedy)
            assert cost is not None and best is not None and cost <= best * (1 + 1e-9) + 1e-15, f"seed {seed}"
        if plan.goal is not None:
            assert plan.goal.bound <= plan.goal.value * (1 + 1e-9), f"seed {seed}, {pass_}: {plan.goal}"
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    started = time.monotonic()
    graphs = plans = 0
    for seed in range(options.first, options.first + options.count):
        if time.monotonic() - started > 60 * options.minutes:
            break
        plans += check(seed)
        graphs += 1
    print(f"{graphs} graphs from seed {options.first}, {plans} plans, {time.monotonic() - started:.0f} s: no fault")


if __name__ == "__main__":
    sys.exit(main())
