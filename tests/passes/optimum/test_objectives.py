"""Objectives of a placement: against every placement and partition of small graphs, and what larger plans keep."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import pytest

from heterocc.artifacts.errors import UnsupportedOpError, UsageError
from heterocc.passes.base import parse_pipeline, policy_pipeline
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.estimate import device_seconds, plan_seconds
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.mincut import MinCut
from heterocc.passes.objective import OBJECTIVES, Goal
from heterocc.passes.optimum.timeline import timeline
from heterocc.passes.placement import overfull
from heterocc.passes.plan import Plan
from heterocc.passes.show.serialize import plan_from_json, plan_to_json
from tests.passes.graphs import chain_graph
from tests.passes.optimum import every
from tests.passes.optimum.cost import random_problem


def close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-15)


def planned(graph: Graph, machine: Machine, objective: str, pins: Mapping[str, str] | None = None) -> tuple[Plan, Goal]:
    (pass_,) = parse_pipeline(f"mincut{{objective={objective}}}")
    start = Plan.initial(graph, machine)
    plan = pass_.run(start.with_partitions(start.partitions, pins or {}))
    assert plan.goal is not None and plan.goal.bound <= plan.goal.value * (1 + 1e-9)
    return plan, plan.goal


def with_limits(graph: Graph, machine: Machine, seed: int) -> Machine:
    """The machine with so little memory on each device that few placements fit, or none."""
    everything = sum(graph.values[v].nbytes for n in graph.nodes for v in n.outputs)
    share = (0.55, 0.7, 0.9)[seed % 3]
    devices = tuple(dataclasses.replace(d, memory=int(everything * share)) for d in machine.devices)
    return dataclasses.replace(machine, devices=devices)


def check(objective: str, seed: int, nodes: int, devices: int) -> None:
    """Compare a random graph's plan with the best of all."""
    graph, machine = random_problem(seed, nodes, devices)
    if objective == "memory":
        machine = with_limits(graph, machine, seed)
        least = every.least_that_fits(graph, machine)
    else:
        least = every.slowest_device(graph, machine) if objective == "throughput" else 0.0
    if math.isinf(least) or not any(True for _ in every.placements(graph, machine)):
        with pytest.raises(UnsupportedOpError):
            planned(graph, machine, objective)
        return
    plan, goal = planned(graph, machine, objective)
    if objective == "transfers":
        fewest, cost = every.fewest_bytes(graph, machine)
        assert goal.value == fewest == goal.bound and close(plan_seconds(plan) or 0.0, cost)
        return
    assert close(goal.value, least) and goal.bound <= least * (1 + 1e-9)
    if objective == "memory":
        assert close(plan_seconds(plan) or 0.0, least) and not overfull(graph, machine, plan.device_of)
    else:
        assert close(max(device_seconds(plan).values()), least)


@pytest.mark.parametrize("objective", ["throughput", "transfers", "memory"])
def test_a_small_graph_is_placed_as_well_as_by_trying_everything(objective: str) -> None:
    for seed in range(6):
        check(objective, seed, 1 + seed % 5, 2)
    for seed in (8, 9):
        check(objective, seed, 3, 3)


def test_costs_beyond_32_bits_of_the_solver_are_added_right() -> None:
    check("throughput", 155, 4, 2)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["throughput", "transfers", "memory"])
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_many_small_graphs_are_placed_as_well_as_by_trying_everything(objective: str, first: int) -> None:
    for seed in range(first, first + 25):
        check(objective, seed, 1 + seed % 8, 2)
        check(objective, seed, 1 + seed % 6, 3)


def check_overlap(seed: int, nodes: int, devices: int) -> float:
    """Compare a plan that overlaps with its serial one, and return its time over the least of all."""
    graph, machine = random_problem(seed, nodes, devices)
    if not any(True for _ in every.placements(graph, machine)):
        return 1.0
    plan, goal = planned(graph, machine, "overlap")
    serial = plan_seconds(MinCut().run(Plan.initial(graph, machine)))
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    order = [[position[name] for name in part.nodes] for part in plan.partitions]
    least = every.earliest_end(graph, machine)
    assert close(goal.value, timeline(plan).end)
    assert close(goal.value, every.end_of_run(graph, machine, plan.device_of, order))
    assert serial is not None and goal.value <= serial * (1 + 1e-9)
    assert goal.bound <= least * (1 + 1e-9) and least <= goal.value * (1 + 1e-9)
    return goal.value / least if least else 1.0


def test_devices_that_work_at_the_same_time_are_never_slower_than_the_serial_plan() -> None:
    ratios = [check_overlap(seed, 1 + seed % 4, 2) for seed in range(6)]
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 5 and max(ratios) < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_most_small_graphs_overlap_as_well_as_by_trying_everything(first: int) -> None:
    ratios = [check_overlap(seed, 1 + seed % 5, 2 + seed % 2) for seed in range(first, first + 20)]
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 16 and max(ratios) < 1.4


def towers(length: int) -> tuple[Graph, Machine]:
    """A node, two towers of nodes that take 10 us on either device, and a node that joins them."""
    names = ["stem", *(f"{tower}{i}" for i in range(length) for tower in "ab")]
    values = {v: Value(v, "float32", (1_000,)) for v in ("x", *names, "y")}
    nodes = [Node("stem", "Op", ("x",), ("stem",))]
    for name in names[1:]:
        number = int(name[1:])
        nodes.append(Node(name, "Op", (f"{name[0]}{number - 1}" if number else "stem",), (name,)))
    nodes.append(Node("head", "Op", (f"a{length - 1}", f"b{length - 1}"), ("y",)))
    times = {n.name: 1e-5 for n in nodes}
    machine = Machine(
        (PlacementDevice("A"), PlacementDevice("B")), default_link=Link(1e-6, 4e9), seconds={"A": times, "B": times}
    )
    return Graph("towers", tuple(nodes), values, ("x",), ("y",)), machine


def test_two_towers_run_beside_each_other_with_the_stem_and_the_head_apart() -> None:
    graph, machine = towers(6)
    assert len(set(MinCut().run(Plan.initial(graph, machine)).device_of.values())) == 1
    plan, goal = planned(graph, machine, "overlap")
    # stem, transfer in 1 us + 4,000 B / 4 GB/s, six nodes, head; the other tower's end is sent while these run
    assert close(goal.value, 8e-5 + 2e-6) and goal.bound == pytest.approx(8e-5)
    assert {len({plan.device_of[f"{tower}{i}"] for i in range(6)}) for tower in "ab"} == {1}
    times = timeline(plan)
    beside = [i for i, part in enumerate(plan.partitions) if len(part.nodes) == 6]
    assert len(beside) == 2 and max(times.starts[i] for i in beside) < min(times.ends[i] for i in beside)


def test_a_chain_is_a_pipeline_of_equal_stages() -> None:
    graph, machine = chain_graph(12, 1_000), ("A", "B", "C")
    times = {n.name: 1e-5 for n in graph.nodes}
    three = Machine(
        tuple(PlacementDevice(d) for d in machine), default_link=Link(1e-6, 4e9), seconds=dict.fromkeys(machine, times)
    )
    plan, goal = planned(graph, three, "throughput")
    assert close(goal.value, 4e-5 + 2e-6) and [len(p.nodes) for p in plan.partitions] == [4, 4, 4]
    assert plan_seconds(plan) == pytest.approx(12e-5 + 4e-6)


@pytest.mark.parametrize(("devices", "nodes"), [(2, 60), (3, 25)])
def test_larger_graphs_keep_pins_and_are_near_the_bound(devices: int, nodes: int) -> None:
    graph, machine = random_problem(3, nodes, devices)
    machine = dataclasses.replace(machine, default_link=Link(), links={p: k for p, k in machine.links.items() if k})
    pins = {"n1": "A", "n20": "A"}
    for objective in OBJECTIVES[1:]:
        (pass_,) = parse_pipeline(f"mincut{{objective={objective},effort=0}}")
        start = Plan.initial(graph, machine)
        plan = pass_.run(start.with_partitions(start.partitions, pins))
        assert plan.goal is not None and all(plan.device_of[node] == device for node, device in pins.items())
        assert plan.goal.bound <= plan.goal.value * (1 + 1e-9)
        if objective == "throughput":
            alone = max(device_seconds(MinCut(effort=0).run(start)).values())
            assert plan.goal.value <= min(alone, 1.5 * plan.goal.bound)


def test_the_value_of_a_plan_that_fits_is_its_time() -> None:
    graph, machine = random_problem(5, 300, 4)
    machine = dataclasses.replace(machine, default_link=Link(), links={p: k for p, k in machine.links.items() if k})
    everything = sum(graph.values[v].nbytes for n in graph.nodes for v in n.outputs)
    devices = tuple(dataclasses.replace(d, memory=int(everything * 0.4)) for d in machine.devices)
    plan, goal = planned(graph, dataclasses.replace(machine, devices=devices), "memory")
    assert not overfull(graph, plan.machine, plan.device_of)
    assert close(goal.value, plan_seconds(plan) or 0.0) and goal.bound <= goal.value


def packed(sizes: list[int], limit: int) -> tuple[Graph, Machine]:
    """A chain whose nodes read constants of so many bytes, on two devices with a limit each."""
    graph = chain_graph(len(sizes), 1)
    constants = {f"k{i}": Value(f"k{i}", "uint8", (size,)) for i, size in enumerate(sizes)}
    nodes = tuple(dataclasses.replace(n, inputs=(*n.inputs, f"k{i}")) for i, n in enumerate(graph.nodes))
    graph = Graph("packed", nodes, {**graph.values, **constants}, ("x",), graph.outputs, frozenset(constants))
    times = {n.name: 1e-6 for n in nodes}
    devices = tuple(PlacementDevice(d, memory=limit) for d in "AB")
    return graph, Machine(devices, default_link=Link(), seconds={"A": times, "B": times})


def test_weights_that_first_fit_cannot_divide_are_divided_by_memory() -> None:
    graph, machine = packed([500, 400, 300, 300, 300], 908)  # 4 bytes for each result; only 500 + 400 fills a device
    machine = dataclasses.replace(machine, devices=tuple(dataclasses.replace(d, memory=912) for d in machine.devices))
    plan, _ = planned(graph, machine, "memory")
    assert not overfull(graph, machine, plan.device_of) and len(set(plan.device_of.values())) == 2
    graph, machine = packed([300, 500, 300, 400, 300], 912)
    with pytest.raises(UnsupportedOpError, match="no device can run") as caught:
        MinCut().run(Plan.initial(graph, machine))
    assert "objective" in (caught.value.hint or "")
    assert not overfull(graph, machine, planned(graph, machine, "memory")[0].device_of)


def test_a_model_that_cannot_fit_is_an_error_with_the_reason() -> None:
    for sizes, reason in (
        ([400, 400, 400, 400, 400], "needs 2020 bytes for its constants and results, and the devices have A 912"),
        ([1000, 100], "fits on no device"),
        ([300, 300, 300, 300, 300], "cannot be divided so that it fits"),
    ):
        graph, machine = packed(sizes, 912 if sum(sizes) != 1500 else 800)
        with pytest.raises(UnsupportedOpError, match=reason) as caught:
            planned(graph, machine, "memory")
        assert caught.value.hint


def test_the_objective_is_an_option_of_the_pass_and_of_the_policy_optimal_alone() -> None:
    assert policy_pipeline("optimal", "throughput")[-1] == MinCut(objective="throughput")
    assert policy_pipeline("merge", "latency") == policy_pipeline("merge")
    with pytest.raises(UsageError, match="'merge' does not choose by the objective 'transfers'"):
        policy_pipeline("merge", "transfers")
    with pytest.raises(UsageError, match="'beauty' is not an objective"):
        policy_pipeline("optimal", "beauty")


def test_a_plan_is_recorded_with_its_goal() -> None:
    graph, machine = towers(2)
    plan, goal = planned(graph, machine, "throughput")
    assert plan_from_json(plan_to_json(plan)).goal == goal
    assert plan.with_partitions(plan.partitions).goal is None
