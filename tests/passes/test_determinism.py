"""The same input gives the same plan, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import random
from heterocc.passes.base import policy_pipeline
from heterocc.passes.cost import PlacementDevice, Machine
from heterocc.passes.show.dot import dot_files
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.plan import Plan
from heterocc.passes.show.printer import print_plan
from heterocc.passes.show.serialize import write_reproducer

random.seed(0)
names = [f"v{i}" for i in range(120)]
consts = [f"k{i}" for i in range(9)]
nodes = []
for i, name in enumerate(names):
    reads = random.sample(["x", *consts, *names[max(0, i - 9):i]], k=min(3, i + 1))
    nodes.append(Node(f"n{i}", random.choice(["Add", "Conv", "Relu"]), tuple(reads), (name,)))
values = {v: Value(v, "float32", (random.randrange(1, 999),)) for v in ["x", *consts, *names]}
graph = Graph("g", tuple(nodes), values, ("x",), (names[-1],), frozenset(consts))
rows = (("A", 60_000, 1e12), ("B", None, 1e11), ("C", None, 1e10))
devices = tuple(PlacementDevice(d, memory=m, flops=f) for d, m, f in rows)
refusals = {d: {n.name: "no" for n in nodes if random.random() < 0.4} for d in "AB"}
plan = Plan.initial(graph, Machine(devices, refusals, {n.name: 10 ** random.uniform(3, 9) for n in nodes}))
for pass_ in policy_pipeline("merge"):
    plan = pass_.run(plan)
assert len(plan.partitions) > 3
print(print_plan(plan), *dot_files(plan).values(), write_reproducer(plan, "merge"))
"""


def test_plans_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert "transfers" in texts[0]
