"""mincut: against every placement of small graphs, against cuts of larger ones, and its bounds."""

from __future__ import annotations

import dataclasses
import math
import random
import time

import numpy as np
import pytest

from heterocc.artifacts.errors import PipelineSpecError, UnsupportedOpError
from heterocc.passes.base import parse_pipeline
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.estimate import plan_seconds
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.greedy import Greedy
from heterocc.passes.merge import Merge
from heterocc.passes.mincut import MinCut
from heterocc.passes.optimum import search
from heterocc.passes.optimum.problem import Problem
from heterocc.passes.placement import overfull
from heterocc.passes.plan import Plan, consecutive
from heterocc.passes.show.printer import human_seconds, summary
from tests.passes.graphs import chain_graph
from tests.passes.optimum.cost import least_cost, partitions_cost, placement_cost, random_problem


def close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-15)


def check_against_all(seed: int, nodes: int, devices: int) -> None:
    graph, machine = random_problem(seed, nodes, devices)
    least = least_cost(graph, machine)
    plan = Plan.initial(graph, machine)
    if math.isinf(least):
        with pytest.raises(UnsupportedOpError):
            MinCut().run(plan)
        return
    plan = MinCut().run(plan)
    cost = placement_cost(graph, machine, plan.device_of) + partitions_cost(graph, machine, plan.device_of)
    assert close(cost, least) and close(plan_seconds(plan) or 0.0, least)
    assert plan.bound is not None and plan.bound <= least * (1 + 1e-9)


@pytest.mark.parametrize(("devices", "nodes", "seeds"), [(2, 7, 40), (3, 5, 20), (4, 5, 12)])
def test_the_cost_is_the_least_of_all_placements_and_partitions(devices: int, nodes: int, seeds: int) -> None:
    for seed in range(seeds):
        check_against_all(seed, 1 + seed % nodes, devices)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "nodes"), [(2, 12), (3, 8), (4, 8)])
@pytest.mark.parametrize("first", range(0, 1_000, 50))
def test_the_cost_of_many_graphs_is_the_least(devices: int, nodes: int, first: int) -> None:
    for seed in range(first, first + 50):
        check_against_all(seed, 1 + seed % nodes, devices)


@pytest.mark.parametrize("seed", range(3))
def test_without_overhead_two_devices_reach_the_lower_bound(seed: int) -> None:
    graph, machine = random_problem(seed, 200, 2, overhead=False)
    plan = MinCut(effort=0).run(Plan.initial(graph, machine))
    seconds = plan_seconds(plan)
    assert seconds is not None and plan.bound is not None and close(seconds, plan.bound)
    assert close(seconds, placement_cost(graph, machine, plan.device_of))


@pytest.mark.parametrize("devices", [2, 3])
def test_a_plan_is_never_slower_than_the_one_before_or_greedy_and_merge(devices: int) -> None:
    for seed in range(6):
        graph, machine = random_problem(seed, 40, devices)
        machine = dataclasses.replace(machine, default_link=Link(), links={p: k for p, k in machine.links.items() if k})
        first = Greedy().run(Plan.initial(graph, machine))
        merged = Merge().run(first)
        found = MinCut(effort=0).run(merged)
        assert (plan_seconds(found) or 0.0) <= (plan_seconds(merged) or 0.0) * (1 + 1e-9)
        assert (plan_seconds(merged) or 0.0) <= (plan_seconds(first) or 0.0) * (1 + 1e-9)
        assert len(merged.partitions) <= len(first.partitions)
        assert MinCut(effort=0).run(found).partitions == MinCut(effort=0).run(found).partitions


def test_pins_stay_and_the_rest_is_placed_best_around_them() -> None:
    for seed in range(10):
        graph, machine = random_problem(seed, 6, 2)
        pins = {"n1": "A", "n4": "A"}
        plan = Plan(graph, machine, Plan.initial(graph, machine).partitions, pins)
        found = MinCut().run(plan)
        assert all(found.device_of[node] == device for node, device in pins.items())
        assert close(plan_seconds(found) or 0.0, least_cost(graph, machine, pins))


def test_memory_is_not_exceeded_if_the_fastest_device_has_too_little() -> None:
    graph = chain_graph(12, elements=1_000)
    fast = {n.name: 1e-6 for n in graph.nodes}
    slow = {n.name: 5e-5 for n in graph.nodes}
    devices = (PlacementDevice("A", memory=20_000), PlacementDevice("B"))
    machine = Machine(devices, links={}, default_link=Link(1e-6, 1e10), seconds={"A": fast, "B": slow})
    for effort in (0.0, 4.0):
        plan = MinCut(effort=effort).run(Plan.initial(graph, machine))
        assert not overfull(graph, machine, plan.device_of)
        assert sum(d == "A" for d in plan.device_of.values()) == 5  # 4,000 bytes each


def test_a_large_graph_is_placed_by_cuts_alone_and_is_near_its_bound() -> None:
    graph, machine = random_problem(1, 3_000, 2)
    plan = MinCut().run(Plan.initial(graph, machine))
    seconds = plan_seconds(plan)
    assert seconds is not None and plan.bound is not None and plan.bound <= seconds <= 1.05 * plan.bound


def priced(graph: Graph, names: str, launch: float) -> Machine:
    """Random times of nodes on each device, links that differ, and an overhead of partitions."""
    rng = np.random.default_rng(0)
    seconds = {d: dict(zip(graph.names, rng.uniform(1e-6, 6e-5, len(graph.nodes)), strict=True)) for d in names}
    links: dict[tuple[str, str], Link | None] = {
        (a, b): Link(float(rng.choice([1e-6, 5e-6, 1e-5])), 8e9) for a in names for b in names if a != b
    }
    devices = tuple(PlacementDevice(d, overhead=launch * rng.choice([0.5, 1.0, 2.0])) for d in names)
    return Machine(devices, links=links, seconds=seconds)


def test_two_thousand_nodes_on_four_devices_take_two_seconds_and_come_near_the_bound() -> None:
    graph = joined_chains(2_000)
    started = time.process_time()
    plan = MinCut().run(Plan.initial(graph, priced(graph, "ABCD", 1e-5)))
    assert time.process_time() - started < 3  # 1 second on an idle machine
    seconds = plan_seconds(plan)
    assert seconds is not None and plan.bound is not None and plan.bound <= seconds <= 1.05 * plan.bound


def joined_chains(count: int) -> Graph:
    """Nodes that mostly read the one before, and sometimes others a few places earlier."""
    rng = random.Random(0)
    nodes = []
    for i in range(count):
        reads = [f"v{i - 1}"] if i and rng.random() < 0.9 else []
        reads += [f"v{rng.randrange(max(0, i - 12), i)}" for _ in range(rng.choice([0, 0, 1])) if i]
        nodes.append(Node(f"n{i}", "Op", tuple(dict.fromkeys(reads)) or ("x",), (f"v{i}",)))
    values = {
        v: Value(v, "float32", (rng.choice([100, 2_000, 10_000]),)) for v in ("x", *(f"v{i}" for i in range(count)))
    }
    read = {v for node in nodes for v in node.inputs}
    return Graph("joined", tuple(nodes), values, ("x",), tuple(v for v in values if v not in read and v != "x"))


@pytest.mark.parametrize("devices", ["AB", "ABCD"])
@pytest.mark.parametrize("length", [9, 3_000])
def test_a_chain_whose_nodes_have_one_device_each_has_a_bound_equal_to_its_cost(devices: str, length: int) -> None:
    graph = chain_graph(length, 1_000)
    machine = priced(graph, devices, 1e-5)
    own = {n.name: devices[i % len(devices)] for i, n in enumerate(graph.nodes)}
    refusals = {d: {n: "another" for n, o in own.items() if o != d} for d in devices}
    plan = MinCut().run(Plan.initial(graph, dataclasses.replace(machine, refusals=refusals)))
    assert dict(plan.device_of) == own and plan.bound is not None and close(plan.bound, plan_seconds(plan) or 0.0)


def test_a_chain_on_several_devices_with_overhead_is_placed_with_a_proof_at_any_length() -> None:
    graph = chain_graph(1_500, 1_000)
    plan = MinCut().run(Plan.initial(graph, priced(graph, "ABC", 2e-5)))
    assert plan.bound is not None and close(plan.bound, plan_seconds(plan) or 0.0)


def test_the_bound_of_three_devices_is_no_more_than_any_placement_costs() -> None:
    rng = np.random.default_rng(0)
    for seed in range(10):
        graph, machine = random_problem(seed, 30, 3)
        problem = Problem.of(graph, machine, {})
        start = np.isfinite(problem.seconds).argmax(axis=1)
        bound = search.lower_bound(problem, start).seconds
        for _ in range(50):
            labels = np.array([rng.choice(np.flatnonzero(np.isfinite(row))) for row in problem.seconds])
            assert bound <= problem.total(labels) * (1 + 1e-9)


def test_values_between_devices_without_a_link_are_an_error_that_says_so() -> None:
    graph = chain_graph(2)
    machine = Machine(
        (PlacementDevice("A"), PlacementDevice("B")),
        refusals={"A": {"n1": "no"}, "B": {"n0": "no"}},
        links={},
        default_link=None,
        seconds={"A": {"n0": 1e-6}, "B": {"n1": 1e-6}},
    )
    with pytest.raises(UnsupportedOpError, match="not linked"):
        MinCut().run(Plan.initial(graph, machine))
    with pytest.raises(UnsupportedOpError, match="nothing can be sent to it from A"):
        Greedy().run(Plan.initial(graph, machine))
    with pytest.raises(ValueError, match="'v0' cannot be sent from A to B"):
        Plan(graph, machine, consecutive(graph, {"n0": "A", "n1": "B"}))


def test_the_summary_says_how_far_a_plan_may_be_from_the_best() -> None:
    graph = joined_chains(60)
    machine = priced(graph, "ABC", 2e-5)
    far = MinCut(effort=0).run(Plan.initial(graph, machine))
    assert far.bound is not None and f", at best {human_seconds(far.bound)}" in summary(far)
    assert "at best" not in summary(Greedy().run(Plan.initial(graph, machine)))
    chain = chain_graph(20, 1_000)
    assert ", the least of all plans" in summary(MinCut().run(Plan.initial(chain, priced(chain, "ABC", 2e-5))))


def test_effort_is_read_and_checked() -> None:
    (found,) = parse_pipeline("mincut{effort=0.5}")
    assert found == MinCut(effort=0.5)
    with pytest.raises(PipelineSpecError):
        parse_pipeline("mincut{effort=-1}")
