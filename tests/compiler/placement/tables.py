"""Random tables of costs with everything that makes a placement hard, and the best plan by trying all.

Usage: python -m tests.compiler.placement.tables [--count 2000] [--first 0] [--nodes 12] [--minutes 60]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import sys
import time
from typing import Any

import numpy as np

from heterocc.artifacts.errors import HeteroccError, UnsupportedOpError
from heterocc.compiler.placement.cost_table import CostTable, place_by_table
from heterocc.passes.base import policy_pipeline
from heterocc.passes.graph import Graph, Node, Value

POLICIES = ("greedy", "merge", "optimal")
OBJECTIVES = ("overlap", "throughput", "transfers", "memory")
OBJECTIVES_EVERY = 4


def random_table(seed: int, most_nodes: int = 12, devices_count: int | None = None) -> tuple[Graph, dict[str, Any]]:
    """A graph and a table for two or three devices, or as many as given."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 3, *range(4, most_nodes + 1)]) if most_nodes > 3 else most_nodes
    devices = "ABCDE"[: devices_count or rng.choice([2, 3])]
    graph = _graph(rng, count)
    zero, launches = rng.random() < 0.15, rng.choice([0, 1, 5, 40, 500])
    rows = {
        n.name: {
            d: 0.0 if zero or rng.random() < 0.1 else float(rng.choice([1, 2, 7, rng.randint(1, 60)]))
            for d in devices
            if rng.random() < 0.85
        }
        or {rng.choice(devices): 1.0}
        for n in graph.nodes
    }
    lost = rng.choice([0.0, 0.0, 0.3, 0.6])
    table: dict[str, Any] = {
        "devices": list(devices),
        "node_us": rows,
        "link": {
            f"{a}->{b}": {"latency_us": float(rng.choice([0, 1, 10])), "gb_per_s": rng.choice([0.5, 8.0, 1000.0])}
            for a, b in itertools.permutations(devices, 2)
            if rng.random() >= lost
        },
        "launch_us": {d: float(rng.choice([0, launches])) for d in devices},
        "pin": {n: rng.choice(list(row)) for n, row in rows.items() if rng.random() < rng.choice([0, 0, 0.4])},
    }
    if rng.random() < 0.25:
        held = sum(v.nbytes for v in graph.values.values())
        table["memory_bytes"] = {d: rng.choice([None, rng.randint(held // 4, held)]) for d in devices}
    return graph, table


def _graph(rng: random.Random, count: int) -> Graph:
    """Chains, towers, stars, separate parts or anything, with constants, shared results and results read twice."""
    kind = rng.choice(["any", "chain", "star", "parts", "towers"])
    values = {name: Value(name, "float32", (rng.choice([1, 3_000]),)) for name in ("x", "y", "k", "w")}
    nodes: list[Node] = []
    written: list[tuple[str, ...]] = []
    for i in range(count):
        before = {"chain": [i - 1], "star": [0], "towers": [i - 2]}.get(kind, [rng.randrange(i)] if i else [])
        if kind == "any":
            before += [rng.randrange(i) for _ in range(rng.choice([0, 1, 2])) if i]
        if kind == "parts" and rng.random() < 0.4:
            before = []
        if kind in ("star", "towers") and i == count - 1:
            before = list(range(max(0, i - 4), i))
        reads = [rng.choice(written[j]) for j in before if 0 <= j < i] or [rng.choice("xy")]
        reads += [name for name in ("k", "w", "x") if rng.random() < 0.1]
        writes = tuple(f"v{i}_{j}" for j in range(rng.choice([1, 1, 1, 2])))
        values.update({v: Value(v, "float32", (rng.choice([1, 250, 10_000]),)) for v in writes})
        nodes.append(Node(f"n{i}", "Op", tuple(dict.fromkeys(reads)), writes))
        written.append(writes)
    read = {v for node in nodes for v in node.inputs}
    ends = [v for node in nodes for v in node.outputs if v not in read or rng.random() < 0.1]
    return Graph("hard", tuple(nodes), values, ("x", "y"), tuple(ends), frozenset("kw"))


class Everything:
    """The cost of plans by the definition of the table, in microseconds, without use of the passes."""

    def __init__(self, graph: Graph, table: dict[str, Any]) -> None:
        self.graph, self.table, self.devices = graph, table, table["devices"]
        self.position = {n.name: i for i, n in enumerate(graph.nodes)}
        self.writer = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs}
        self.readers = {
            v: sorted({i for i, n in enumerate(graph.nodes) if v in n.inputs})
            for v in self.writer
            if any(v in n.inputs for n in graph.nodes)
        }
        self.launch = [table["launch_us"].get(d, 0.0) for d in self.devices]

    def transfer(self, value: str, source: int, target: int) -> float:
        link = self.table["link"].get(f"{self.devices[source]}->{self.devices[target]}")
        if link is None:
            return math.inf
        return float(link["latency_us"] + self.graph.values[value].nbytes / link["gb_per_s"] / 1e3)

    def least(self) -> float:
        """The cost of the cheapest plan, by trying all; infinite if the graph cannot be placed."""
        able = [
            [
                i
                for i, d in enumerate(self.devices)
                if d in self.table["node_us"][n.name] and self.table["pin"].get(n.name, d) == d
            ]
            for n in self.graph.nodes
        ]
        labels = np.array(list(itertools.product(*able)), np.int8)
        cost = np.zeros(len(labels))
        for column, node in zip(labels.T, self.graph.nodes, strict=True):
            row = self.table["node_us"][node.name]
            cost += np.array([row.get(d, math.inf) for d in self.devices])[column]
        for value, readers in self.readers.items():
            for source, target in itertools.permutations(range(len(self.devices)), 2):
                sent = (labels[:, self.writer[value]] == source) & (labels[:, readers] == target).any(axis=1)
                cost[sent] += self.transfer(value, source, target)
        for device, limit in enumerate(self.table.get("memory_bytes", {}).get(d) for d in self.devices):
            if limit is not None:
                cost[self.held(labels, device) > limit] = math.inf
        with_launch = cost.copy()
        for device, launch in enumerate(self.launch):
            with_launch += launch * (labels == device).any(axis=1)
        best = math.inf
        for place in np.argsort(with_launch, kind="stable").tolist():
            if with_launch[place] >= best:
                break
            best = min(best, cost[place] + self.partitions(tuple(labels[place].tolist())))
        return float(best)

    def held(self, labels: Any, device: int) -> Any:
        nbytes = {v.name: v.nbytes for v in self.graph.values.values()}
        found = np.zeros(len(labels))
        for column, node in zip(labels.T, self.graph.nodes, strict=True):
            found += (column == device) * sum(nbytes[v] for v in node.outputs)
        for constant in self.graph.constants:
            readers = [i for i, n in enumerate(self.graph.nodes) if constant in n.inputs]
            found += (labels[:, readers] == device).any(axis=1) * nbytes[constant]
        return found

    def partitions(self, labels: tuple[int, ...]) -> float:
        """The least cost of launches for a placement, by all orders of runs of one device."""
        before = [sum(1 << i for i in set(sources)) for sources in self.graph.sources]
        whole, queue, reached = (1 << len(labels)) - 1, [(0.0, 0)], {0: 0.0}
        while queue:
            cost, done = heapq.heappop(queue)
            if done == whole:
                return cost
            if cost > reached[done]:
                continue
            for device, launch in enumerate(self.launch):
                after = done
                for i, label in enumerate(labels):  # in graph order, so once is enough
                    if label == device and not before[i] & ~after:
                        after |= 1 << i
                if after != done and cost + launch < reached.get(after, math.inf):
                    reached[after] = cost + launch
                    heapq.heappush(queue, (cost + launch, after))
        raise AssertionError("no order runs the graph")

    def check(self, found: dict[str, Any]) -> None:
        """Raise AssertionError for a plan that is not valid or whose cost is not as stated."""
        turn = {name: i for i, part in enumerate(found["partitions"]) for name in part["nodes"]}
        names = [name for part in found["partitions"] for name in part["nodes"]]
        assert sorted(names) == sorted(self.position), "every node once"
        label = {name: self.devices.index(found["partitions"][i]["device"]) for name, i in turn.items()}
        cost = sum(self.launch[self.devices.index(part["device"])] for part in found["partitions"])
        sent = set()
        for node in self.graph.nodes:
            assert self.table["pin"].get(node.name, self.devices[label[node.name]]) == self.devices[label[node.name]]
            cost += self.table["node_us"][node.name][self.devices[label[node.name]]]
            for value in node.inputs:
                if value in self.writer:
                    source = self.graph.nodes[self.writer[value]].name
                    assert turn[source] <= turn[node.name], "a value is read before it is written"
                    if label[source] != label[node.name]:
                        sent.add((value, label[source], label[node.name]))
        cost += sum(self.transfer(*one) for one in sent)
        stated = {(t["value"], self.devices.index(t["from"]), self.devices.index(t["to"])) for t in found["transfers"]}
        assert stated == sent and len(found["transfers"]) == len(sent), "transfers"
        assert math.isclose(cost, found["cost_us"], rel_tol=1e-9, abs_tol=1e-9), (cost, found["cost_us"])
        assert found["lower_bound_us"] <= cost * (1 + 1e-9) + 1e-9
        labels = np.array([[label[n.name] for n in self.graph.nodes]])
        for device, name in enumerate(self.devices):
            limit = self.table.get("memory_bytes", {}).get(name)
            assert limit is None or self.held(labels, device)[0] <= limit, "memory"


def check(seed: int, most_nodes: int = 12, devices: int | None = None) -> tuple[int, int]:
    """Place a random graph by every policy; the numbers of plans and of errors. AssertionError for a fault."""
    graph, data = random_table(seed, most_nodes, devices)
    every, table = Everything(graph, data), CostTable.model_validate(data)
    least = every.least()
    costs: dict[str, float] = {}
    for policy in POLICIES:
        try:
            found = place_by_table(graph, table, policy_pipeline(policy), policy)
        except HeteroccError as error:
            assert isinstance(error, UnsupportedOpError), f"seed {seed}, {policy}: {error}"
            may_fail = policy != "optimal" or "memory_bytes" in data
            assert math.isinf(least) or may_fail, f"seed {seed}: {policy} finds no plan, of {least} us: {error}"
            continue
        try:
            every.check(found)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {policy}: {error}") from error
        assert found["lower_bound_us"] <= least * (1 + 1e-9) + 1e-9, f"seed {seed}, {policy}: the bound is too large"
        costs[policy] = found["cost_us"]
    if "merge" in costs:
        assert costs["merge"] <= costs["greedy"] * (1 + 1e-9) + 2e-3, f"seed {seed}: {costs}"
    if "optimal" in costs:
        assert math.isclose(costs["optimal"], least, rel_tol=1e-9, abs_tol=1e-9), f"seed {seed}: {costs}, least {least}"
    for objective in OBJECTIVES if seed % OBJECTIVES_EVERY == 0 else ():
        try:
            found = place_by_table(graph, table, policy_pipeline("optimal", objective), objective)
        except UnsupportedOpError as error:
            may_fail = "memory_bytes" in data and objective != "memory"
            assert math.isinf(least) or may_fail, f"seed {seed}: {objective} finds no plan, of {least} us: {error}"
            continue
        except HeteroccError as error:
            raise AssertionError(f"seed {seed}, {objective}: {error}") from error
        every.check(found)
        goal = found["objective"]
        assert goal["lower_bound"] <= goal["value"] * (1 + 1e-9) + 1e-9, f"seed {seed}: {goal}"
    return len(costs), len(POLICIES) - len(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    started, graphs, plans, errors, faults = time.monotonic(), 0, 0, 0, 0
    for seed in range(options.first, options.first + options.count):
        if time.monotonic() - started > 60 * options.minutes:
            break
        try:
            found = check(seed, options.nodes)
        except AssertionError as error:
            faults += 1
            print(error, flush=True)
            continue
        graphs, plans, errors = graphs + 1, plans + found[0], errors + found[1]
    print(f"{graphs} graphs, {plans} plans, {errors} errors, {faults} faults, {time.monotonic() - started:.0f} s")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
