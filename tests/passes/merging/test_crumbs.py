"""Partitions of a CPU beside ONNX Runtime that cost more than they save."""

from __future__ import annotations

import pytest

from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.greedy import Greedy
from heterocc.passes.merge import Merge
from heterocc.passes.plan import Plan
from tests.passes.graphs import chain_graph

CPU = PlacementDevice("CPU")
ORT = PlacementDevice("ORT", kind="ort", last_resort=True, overhead=9e-6)
LINK = Link(latency=2e-6)


def merged(cpu_us: dict[int, float], ort_us: float, nodes: int, pins: dict[str, str] | None = None) -> str:
    """The devices of a chain's nodes, of which only those in `cpu_us` can run on the CPU, as `coc`."""
    graph = chain_graph(nodes)
    names = graph.names
    seconds = {
        "CPU": {names[place]: us * 1e-6 for place, us in cpu_us.items()},
        "ORT": dict.fromkeys(names, ort_us * 1e-6),
    }
    refusals = {"CPU": {n: "no" for place, n in enumerate(names) if place not in cpu_us}}
    machine = Machine((CPU, ORT), refusals, default_link=LINK, seconds=seconds)
    start = Plan(graph, machine, Plan.initial(graph, machine).partitions, pins or {})
    plan = Merge().run(Greedy().run(start))
    assert Merge().run(plan).partitions == plan.partitions
    return "".join(plan.device_of[name][0].lower() for name in names)


def test_a_partition_that_saves_less_than_its_transfers_and_calls_goes_to_onnx_runtime() -> None:
    assert merged({1: 1.0}, 5.0, 3) == "ooo"  # 4 us saved, 13 us of calls and transfers


def test_a_partition_that_saves_more_stays() -> None:
    assert merged({1: 1.0}, 20.0, 3) == "oco"


def test_only_the_partitions_that_are_not_worth_it_move() -> None:
    assert merged({1: 1.0, 3: 4.0}, 5.0, 5) == "ooooo"
    graph = chain_graph(5)
    names = graph.names
    seconds = {
        "CPU": {names[1]: 1e-6, names[3]: 1e-6},
        "ORT": {n: (50e-6 if n == names[3] else 3e-6) for n in names},
    }
    refusals = {"CPU": {names[place]: "no" for place in (0, 2, 4)}}
    machine = Machine((CPU, ORT), refusals, default_link=LINK, seconds=seconds)
    plan = Merge().run(Greedy().run(Plan(graph, machine, Plan.initial(graph, machine).partitions)))
    assert [plan.device_of[n] for n in names] == ["ORT", "ORT", "ORT", "CPU", "ORT"]


def test_pinned_nodes_and_plans_without_a_last_resort_stay() -> None:
    assert merged({1: 1.0}, 5.0, 3, {"n1": "CPU"}) == "oco"
    assert merged({0: 9.0, 1: 9.0}, 1.0, 2) == "cc"
    assert merged({0: 9.0, 1: 9.0, 2: 9.0}, 1.0, 3, {"n1": "ORT"}) == "coc"  # whoever pins one node means one


@pytest.mark.parametrize("crumbs", [1, 3, 100])
def test_any_number_of_crumbs_is_gathered(crumbs: int) -> None:
    assert merged({2 * k + 1: 1.0 for k in range(crumbs)}, 2.0, 2 * crumbs + 1) == "o" * (2 * crumbs + 1)
