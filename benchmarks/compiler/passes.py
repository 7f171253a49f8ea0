"""Time of placement on large graphs, and the number of partitions after merge against the smallest possible one.

    python benchmarks/compiler/passes.py [--json FILE]

Random graphs, every node on a random device: harder than any model, whose devices come in long runs. `bound` is a
lower bound of the number of partitions, so the fewest lie between it and `after`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.merge import Merge
from heterocc.passes.merging import schedule
from heterocc.passes.plan import Plan, consecutive


@dataclass(frozen=True, slots=True)
class Row:
    """One graph: partitions as consecutive runs, after merge, the lower bound, and seconds of merge."""

    nodes: int
    devices: int
    window: int
    before: int
    after: int
    bound: int
    join_seconds: float
    islands_seconds: float
    transfers_before: int
    transfers_after: int


def random_plan(nodes: int, devices: int, window: int, seed: int) -> Plan:
    """Nodes that read some of the `window` nodes before them."""
    rng = random.Random(seed)
    ops = []
    for i in range(nodes):
        reads = [f"v{j}" for j in range(max(0, i - window), i) if rng.random() < 1.6 / window]
        ops.append(Node(f"n{i}", "Add", tuple(reads) or ("x",), (f"v{i}",)))
    read = {v for n in ops for v in n.inputs}
    values = {v: Value(v, "float32", (rng.randrange(1, 100_000),)) for v in ["x", *(f"v{i}" for i in range(nodes))]}
    outputs = tuple(f"v{i}" for i in range(nodes) if f"v{i}" not in read)
    graph = Graph("random", tuple(ops), values, ("x",), outputs)
    models = tuple(PlacementDevice(f"D{i}", flops=10.0 ** rng.uniform(9, 12)) for i in range(devices))
    device_of = {n.name: models[rng.randrange(devices)].name for n in ops}
    work = {n.name: 10.0 ** rng.uniform(3, 9) for n in ops}
    return Plan(graph, Machine(models, work=work), consecutive(graph, device_of))


def measure(nodes: int, devices: int, window: int) -> Row:
    """Merge one random graph, without and with islands."""
    plan = random_plan(nodes, devices, window, seed=nodes + devices + window)
    started = time.perf_counter()
    joined = Merge(islands=False).run(plan)
    halfway = time.perf_counter()
    pulled = Merge().run(plan)
    ended = time.perf_counter()
    numbers: dict[str, int] = {}
    labels = [numbers.setdefault(plan.device_of[n.name], len(numbers)) for n in plan.graph.nodes]
    blocks = schedule._contract(plan.graph.sources, labels, [1] * len(numbers))
    bound = int(schedule._bound(schedule._start(blocks), schedule._tails(blocks), blocks.weights))
    return Row(
        nodes,
        devices,
        window,
        len(plan.partitions),
        len(joined.partitions),
        bound,
        halfway - started,
        ended - halfway,
        len(plan.transfers),
        len(pulled.transfers),
    )


def main() -> None:
    """Print the table; write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    head = ("nodes", "devices", "window", "before", "after", "bound", "join s", "islands s", "transfers", "after")
    print(" ".join(f"{h:>9}" for h in head))
    for nodes in (500, 2000):
        for devices in (2, 3, 4, 6):
            for window in (5, 10, 100):
                row = measure(nodes, devices, window)
                rows.append(row)
                cells = [f"{v:9.2f}" if isinstance(v, float) else f"{v:9}" for v in asdict(row).values()]
                print(" ".join(cells))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
