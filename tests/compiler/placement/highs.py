"""Plans of graphs of 200 nodes against an integer programme of our own definition of cost, solved by HiGHS.

Usage: python -m tests.compiler.placement.highs [--graphs 6] [--seconds 60] [--nodes 200] [--launches 10 20]

Prints the cost of `optimal`, its lower bound, and HiGHS's best plan and bound for each
graph and time of a launch, in microseconds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from typing import Any

import highspy

from heterocc.compiler.placement.cost_table import CostTable, place_by_table
from heterocc.passes.base import policy_pipeline
from heterocc.passes.graph import Graph, Node, Value


def problem(seed: int, count: int, launch: float) -> tuple[Graph, dict[str, Any]]:
    """A graph of chains with joins, and a table for two devices."""
    rng = random.Random(seed)
    values = {"x": Value("x", "float32", (8,))}
    nodes = []
    for i in range(count):
        reads = [f"v{i - 1}"] if i and rng.random() < 0.8 else []
        reads += [f"v{rng.randrange(max(0, i - 12), i)}" for _ in range(rng.choice([0, 0, 1, 2])) if i]
        values[f"v{i}"] = Value(f"v{i}", "float32", (rng.choice([100, 2_000, 10_000, 40_000]),))
        nodes.append(Node(f"n{i}", "Op", tuple(dict.fromkeys(reads)) or ("x",), (f"v{i}",)))
    read = {v for node in nodes for v in node.inputs}
    graph = Graph("large", tuple(nodes), values, ("x",), tuple(v for v in values if v not in read and v != "x"))
    rows: dict[str, dict[str, float]] = {n.name: {"A": rng.randint(1, 60), "B": rng.randint(1, 60)} for n in nodes}
    for row in rows.values():
        if rng.random() < 0.1:
            row.pop(rng.choice("AB"))
    table = {
        "devices": ["A", "B"],
        "node_us": {name: {d: float(t) for d, t in row.items()} for name, row in rows.items()},
        "link": {k: {"latency_us": rng.choice([1.0, 5.0, 10.0]), "gb_per_s": 8.0} for k in ("A->B", "B->A")},
        "launch_us": {"A": launch, "B": 0.5 * launch},
    }
    return graph, table


class Programme:
    """Nodes on devices, values sent, and the number of partitions, which alternate between A and B.

    `before` is how many times a path to the node goes from B to A, at most. The node runs in the partition of its
    device with this number, and all earlier ones are needed. It is whole wherever the devices are decided.
    """

    def __init__(self, graph: Graph, table: dict[str, Any]) -> None:
        self.solver: Any = highspy.Highs()
        self.solver.silent()
        self.costs: list[Any] = []
        on = [[self._chosen(table["node_us"][n.name].get(d)) for d in table["devices"]] for n in graph.nodes]
        for row in on:
            self.solver.addConstr(sum(row) == 1)
        for value in sorted({v for n in graph.nodes for v in n.inputs if graph.writers[v] >= 0}):
            for a, b in itertools.permutations(range(2)):
                link = table["link"][f"{table['devices'][a]}->{table['devices'][b]}"]
                sent = self.solver.addVariable(0, 1)
                self.costs.append((link["latency_us"] + graph.values[value].nbytes / link["gb_per_s"] / 1e3) * sent)
                for reader in graph.consumers[value]:
                    self.solver.addConstr(sent >= on[graph.writers[value]][a] + on[graph.position[reader]][b] - 1)
        if any(table["launch_us"].values()):
            self._add_launches(graph, on, [table["launch_us"][d] for d in table["devices"]])

    def _add_launches(self, graph: Graph, on: list[list[Any]], launch: list[float]) -> None:
        before = [self.solver.addVariable(0, len(on)) for _ in on]
        of_a, of_b = (self.solver.addVariable(0, len(on)) for _ in range(2))
        begins_with_b = self._chosen(0.0)
        for node, sources in enumerate(graph.sources):
            for source in sources:
                self.solver.addConstr(before[node] >= before[source])
                self.solver.addConstr(before[node] >= before[source] + on[source][1] - on[node][1])
            self.solver.addConstr(of_a >= before[node] + 1 - begins_with_b)
            self.solver.addConstr(of_b >= before[node] + on[node][1])
            self.solver.addConstr(begins_with_b <= before[node] + on[node][1])
        self.costs += [launch[0] * of_a, launch[1] * of_b]

    def _chosen(self, cost: float | None) -> Any:
        """A variable of 0 or 1 with a cost; always 0 without one."""
        variable = self.solver.addIntegral(0, 0 if cost is None else 1)
        if cost:
            self.costs.append(cost * variable)
        return variable

    def solve(self, seconds: float) -> tuple[float, float]:
        """The cost of the best plan found (infinite if none was), and a lower bound."""
        self.solver.setOptionValue("time_limit", seconds)
        self.solver.minimize(sum(self.costs))
        info = self.solver.getInfo()
        found = info.primal_solution_status == highspy.kSolutionStatusFeasible
        return info.objective_function_value if found else math.inf, info.mip_dual_bound


def compare(seed: int, count: int, launch: float, seconds: float) -> tuple[float, float, float, float]:
    """Cost and lower bound of `optimal`, and of the programme, in microseconds."""
    graph, data = problem(seed, count, launch)
    found = place_by_table(graph, CostTable.model_validate(data), policy_pipeline("optimal"), "optimal")
    best, bound = Programme(graph, data).solve(seconds)
    return found["cost_us"], found["lower_bound_us"], best, bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--launches", type=float, nargs="+", default=[0.0, 10.0, 20.0, 100.0, 300.0])
    options = parser.parse_args()
    print(f"{'seed':>5}{'launch':>8}{'optimal':>11}{'bound':>11}{'HiGHS':>11}{'its bound':>11}{'over HiGHS':>12}")
    for launch, seed in itertools.product(options.launches, range(options.graphs)):
        cost, bound, best, proven = compare(seed, options.nodes, launch, options.seconds)
        over = 100 * (cost / best - 1)
        print(
            f"{seed:>5}{launch:>8.0f}{cost:>11.2f}{bound:>11.2f}{best:>11.2f}{proven:>11.2f}{over:>11.2f}%", flush=True
        )


if __name__ == "__main__":
    main()
