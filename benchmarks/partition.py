"""Time of the passes on large random graphs, and the cost of their plans against the lower bound.

Usage: python benchmarks/partition.py [NODES …]   (default 1000 10000 40000 100000)
Graphs are chains of operators with skips over up to four nodes; two devices have random times, one refuses some
nodes, 10 us and 8 GB/s between them and 5 us for each partition. Prints a table and writes
benchmarks/results/partition.json.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

from heterocc.compiler.placement.run_passes import run_pipeline  # noqa: E402
from heterocc.passes.base import policy_pipeline  # noqa: E402
from heterocc.passes.cost import Link, Machine, PlacementDevice  # noqa: E402
from heterocc.passes.estimate import plan_seconds  # noqa: E402
from heterocc.passes.graph import Graph, Node, Value  # noqa: E402
from heterocc.passes.optimum.cuts import prepare  # noqa: E402
from heterocc.passes.plan import Plan  # noqa: E402


def problem(count: int) -> tuple[Graph, Machine]:
    """A graph of `count` nodes and a machine of two devices."""
    rng = random.Random(count)
    values = {"x": Value("x", "float32", (1, 64, 56, 56))}
    nodes = []
    for i in range(count):
        op_type = rng.choice(["Conv", "Relu", "Add", "Mul", "Softmax"])
        before = [f"v{j}" for j in range(max(0, i - 4), i)] or ["x"]
        reads = (before[-1],) if op_type not in ("Add", "Mul") else (before[-1], rng.choice(before))
        values[f"v{i}"] = Value(f"v{i}", "float32", (1, 64, 56, rng.choice([1, 14, 56])))
        nodes.append(Node(f"n{i}", op_type, tuple(dict.fromkeys(reads)), (f"v{i}",)))
    read = {v for node in nodes for v in node.inputs}
    outputs = tuple(v for v in values if v not in read and v != "x")
    graph = Graph("random", tuple(nodes), values, ("x",), outputs)
    refused = {n.name: "no" for n in nodes if n.op_type == "Softmax" and rng.random() < 0.3}
    seconds = {d: {n.name: rng.uniform(1e-6, 5e-5) for n in nodes} for d in "AB"}
    devices = tuple(PlacementDevice(d, overhead=5e-6) for d in "AB")
    return graph, Machine(devices, {"A": refused}, default_link=Link(1e-5, 8e9), seconds=seconds)


def main() -> None:
    sizes = [int(text) for text in sys.argv[1:]] or [1_000, 10_000, 40_000, 100_000]
    prepare()
    rows = []
    print(
        f"{'nodes':>8} {'policy':<9}{'seconds':>9}{'partitions':>12}{'transfers':>11}{'cost ms':>10}{'over bound':>12}"
    )
    for size in sizes:
        graph, machine = problem(size)
        bound = None
        for policy in ("optimal", "merge", "greedy"):
            plan = Plan.initial(graph, machine)
            started = time.perf_counter()
            plan = run_pipeline(plan, policy_pipeline(policy))
            seconds = time.perf_counter() - started
            cost = plan_seconds(plan) or 0.0
            bound = plan.bound or bound or cost
            rows.append({
                "nodes": size, "policy": policy, "seconds": seconds, "partitions": len(plan.partitions),
                "transfers": len(plan.transfers), "cost_ms": cost * 1e3, "over_bound": cost / bound - 1,
            })  # fmt: skip
            print(
                f"{size:>8} {policy:<9}{seconds:>9.2f}{len(plan.partitions):>12}{len(plan.transfers):>11}"
                f"{cost * 1e3:>10.2f}{100 * (cost / bound - 1):>11.2f}%",
                flush=True,
            )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    out = ROOT / "benchmarks" / "results" / "partition.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
