"""Time of the passes on large graphs of several kinds, and the cost of their plans against the lower bound.

Usage: python benchmarks/compiler/partition.py [--kinds skips,chain,…] [--repeat N] [NODES …]   (default skips, 1 run,
1000 10000 40000 100000 nodes). Kinds: `skips`, a chain of operators with skips over up to four nodes; `chain`, without
skips; `wide`, layers of 64 nodes that read up to three of the layer before; `towers`, eight chains with residual
additions, joined at the end; `random`, nodes that read up to three of the 1,000 before. Two devices have random times,
one refuses some nodes, 10 us and 8 GB/s between them and 5 us for each partition. `--repeat` times new graphs that are
equal and prints the least time. Prints a table and writes benchmarks/results/partition.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import resource
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

from heterocc.compiler.placement.run_passes import run_pipeline  # noqa: E402
from heterocc.passes.base import policy_pipeline  # noqa: E402
from heterocc.passes.cost import Link, Machine, PlacementDevice  # noqa: E402
from heterocc.passes.estimate import plan_seconds  # noqa: E402
from heterocc.passes.graph import Graph, Node, Value  # noqa: E402
from heterocc.passes.plan import Plan  # noqa: E402

KINDS = ("skips", "chain", "wide", "towers", "random")


def problem(count: int, kind: str = "skips") -> tuple[Graph, Machine]:
    """A graph of `count` nodes and a machine of two devices."""
    rng = random.Random(count)
    values = {"x": Value("x", "float32", (1, 64, 56, 56))}
    nodes = []
    for i in range(count):
        op_type = rng.choice(["Conv", "Relu", "Add", "Mul", "Softmax"])
        reads = _reads(kind, count, i, op_type, rng)
        values[f"v{i}"] = Value(f"v{i}", "float32", (1, 64, 56, rng.choice([1, 14, 56])))
        nodes.append(Node(f"n{i}", op_type, tuple(dict.fromkeys(reads)), (f"v{i}",)))
    read = {v for node in nodes for v in node.inputs}
    outputs = tuple(v for v in values if v not in read and v != "x")
    graph = Graph(kind, tuple(nodes), values, ("x",), outputs)
    refused = {n.name: "no" for n in nodes if n.op_type == "Softmax" and rng.random() < 0.3}
    seconds = {d: {n.name: rng.uniform(1e-6, 5e-5) for n in nodes} for d in "AB"}
    devices = tuple(PlacementDevice(d, overhead=5e-6) for d in "AB")
    return graph, Machine(devices, {"A": refused}, default_link=Link(1e-5, 8e9), seconds=seconds)


def _reads(kind: str, count: int, i: int, op_type: str, rng: random.Random) -> tuple[str, ...]:
    """The values that node `i` reads."""
    if kind in ("skips", "chain"):
        before = [f"v{j}" for j in range(max(0, i - 4), i)] or ["x"]
        joins = kind == "skips" and op_type in ("Add", "Mul")
        return (before[-1], rng.choice(before)) if joins else (before[-1],)
    if kind == "wide":
        layer = i // 64 * 64
        return tuple(f"v{rng.randrange(layer - 64, layer)}" for _ in range(rng.randint(1, 3))) if layer else ("x",)
    if kind == "towers":
        if i == count - 1:
            return tuple(f"v{j}" for j in range(max(0, i - 8), i)) or ("x",)
        steps = [f"v{j}" for j in range(i % 8, i, 8)][-4:]
        return (steps[-1], steps[0]) if len(steps) == 4 and i // 8 % 4 == 3 else (steps[-1],) if steps else ("x",)
    return tuple(f"v{rng.randrange(max(0, i - 1000), i)}" for _ in range(rng.randint(1, 3))) if i else ("x",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="*", type=int, default=[1_000, 10_000, 40_000, 100_000])
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["skips"])
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    rows = []
    print(
        f"{'kind':<8}{'nodes':>8} {'policy':<9}{'seconds':>9}{'partitions':>12}{'transfers':>11}{'cost ms':>10}"
        f"{'over bound':>12}"
    )
    for kind, size in itertools.product(options.kinds, options.nodes):
        bound = None
        for policy in ("optimal", "merge", "greedy"):
            seconds = math.inf
            for _ in range(options.repeat):
                start = Plan.initial(*problem(size, kind))
                started = time.perf_counter()
                plan = run_pipeline(start, policy_pipeline(policy))
                seconds = min(seconds, time.perf_counter() - started)
            cost = plan_seconds(plan) or 0.0
            bound = plan.bound or bound or cost
            rows.append({
                "kind": kind, "nodes": size, "policy": policy, "seconds": seconds, "partitions": len(plan.partitions),
                "transfers": len(plan.transfers), "cost_ms": cost * 1e3, "over_bound": cost / bound - 1,
            })  # fmt: skip
            print(
                f"{kind:<8}{size:>8} {policy:<9}{seconds:>9.3f}{len(plan.partitions):>12}{len(plan.transfers):>11}"
                f"{cost * 1e3:>10.2f}{100 * (cost / bound - 1):>11.2f}%",
                flush=True,
            )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    out = ROOT / "benchmarks" / "results" / "partition.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
