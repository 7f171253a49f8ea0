"""merge: the join, its bounds and its ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings

from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.estimate import node_seconds, transfer_seconds
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.merge import Merge
from heterocc.passes.merging import schedule
from heterocc.passes.merging.schedule import fewest_turns
from heterocc.passes.native.calls import cheapest_turns
from heterocc.passes.placement import overfull
from heterocc.passes.plan import Partition, Plan
from tests.passes.graphs import LETTERS, arrows, chain, chain_graph, fewest_partitions, placed, plans, tensors

JOIN = Merge(islands=False)


def seconds(plan: Plan) -> float:
    """The cost that islands minimises, with known work or without."""
    graph, machine = plan.graph, plan.machine
    run = sum(node_seconds(graph, machine, plan.device_of[n.name], n) for n in graph.nodes)
    return run + sum(transfer_seconds(machine, t.source, t.target, t.nbytes) for t in plan.transfers)


@settings(max_examples=300)
@given(plans())
def test_the_join_equals_brute_force_on_small_graphs(plan: Plan) -> None:
    assert len(JOIN.run(plan).partitions) == fewest_partitions(plan)


@given(plans(max_nodes=14))
def test_the_join_keeps_every_device_and_every_transfer(plan: Plan) -> None:
    joined = JOIN.run(plan)
    assert joined.device_of == plan.device_of
    assert {(t.value, t.target) for t in joined.transfers} == {(t.value, t.target) for t in plan.transfers}


@settings(max_examples=200)
@given(plans(max_nodes=12))
def test_merge_never_adds_a_transfer_a_partition_or_time(plan: Plan) -> None:
    merged = Merge().run(plan)
    assert len(merged.transfers) <= len(plan.transfers)
    assert len(merged.partitions) <= len(JOIN.run(plan).partitions)
    assert seconds(merged) <= seconds(plan) + 1e-12
    assert not overfull(merged.graph, merged.machine, merged.device_of)


@given(plans(max_nodes=12))
def test_merge_moves_only_crumbs_of_a_cpu_onto_the_last_resort_and_nothing_that_is_pinned(plan: Plan) -> None:
    merged = Merge().run(plan)
    has_cpu = any(d.kind == "cpu" and not d.last_resort for d in plan.machine.devices)
    last = set() if has_cpu else {d.name for d in plan.machine.devices if d.last_resort}
    for node, device in merged.device_of.items():
        assert device == plan.device_of[node] or (device not in last and node not in plan.pins)


@pytest.mark.parametrize("merge", [Merge(), JOIN, Merge(max_nodes=2)], ids=repr)
@given(plan=plans(max_nodes=12))
def test_merge_is_idempotent(merge: Merge, plan: Plan) -> None:
    once = merge.run(plan)
    assert merge.run(once) == once


@given(plans(max_nodes=12))
def test_max_nodes_bounds_every_partition(plan: Plan) -> None:
    assert max(len(p.nodes) for p in Merge(max_nodes=3).run(plan).partitions) <= 3


def test_max_nodes_cuts_in_graph_order() -> None:
    plan = Merge(max_nodes=2).run(chain("ccccc"))
    assert [p.nodes for p in plan.partitions] == [("n0", "n1"), ("n2", "n3"), ("n4",)]


def test_max_nodes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Merge(max_nodes=0)


def test_disconnected_chains_share_partitions() -> None:
    graph = arrows("p1->a1->b1->a2; p2->a3->b2->a4; p3->b3; a5")
    plan = placed(graph, {"b1": "B", "b2": "B", "b3": "B", "*": "A"})
    merged = JOIN.run(plan)
    assert [p.device for p in merged.partitions] == ["A", "B", "A"]
    assert merged.partitions[1].nodes == ("b1", "b2", "b3")


def test_the_first_device_to_run_is_chosen_well() -> None:
    """Starting with B saves one partition although A holds the first node."""
    graph = arrows("p1->a1; p2->b1->a2")
    merged = JOIN.run(placed(graph, {"b1": "B", "*": "A"}))
    assert [p.device for p in merged.partitions] == ["B", "A"]


def test_three_devices_need_looking_ahead() -> None:
    """Taking the longest run first would cost a partition: A C, then both B."""
    graph = arrows("p1->a1->b1->c1; p2->c2->a2->b2")
    devices = {"a1": "A", "a2": "A", "b1": "B", "b2": "B", "c1": "C", "c2": "C"}
    plan = placed(graph, devices)
    assert len(JOIN.run(plan).partitions) == fewest_partitions(plan) == 4


def test_a_node_runs_with_its_reader_if_that_keeps_a_value_inside() -> None:
    merged = JOIN.run(placed(arrows("p->A1->B1->C; k->B1; k->X->C"), {"B1": "B", "*": "A"}))
    assert merged.partitions[2].nodes == ("X", "C")
    assert merged.outputs_of(0) == ("A1",)


@pytest.mark.parametrize("elements", [1, 100])
def test_a_node_stays_early_if_its_input_is_no_smaller_than_its_output(elements: int) -> None:
    values = {v: Value(v, "float32", (elements if v == "a" else 1,)) for v in ("p", "a", "t", "x", "b", "c")}
    nodes = (
        Node("a", "Op", ("p",), ("a", "t")),
        Node("x", "Op", ("a",), ("x",)),
        Node("b", "Op", ("t",), ("b",)),
        Node("c", "Op", ("b", "x"), ("c",)),
    )
    graph = Graph("g", nodes, values, ("p",), ("c",))
    assert JOIN.run(placed(graph, {"b": "B", "*": "A"})).partitions[0].nodes == ("a", "x")


def test_an_empty_plan_stays_empty() -> None:
    graph = Graph("g", (), tensors(["x"]), ("x",), ("x",))
    assert Merge().run(Plan.initial(graph, Machine((PlacementDevice("CPU"),)))).partitions == ()


def test_what_was_not_placed_is_merged_like_a_device() -> None:
    plan = Plan.initial(chain_graph(3), Machine((PlacementDevice("CPU"),)))
    assert Merge().run(plan) == plan


def turns_of(plan: Plan, work: int) -> tuple[list[int], float, float]:
    """The turn of each node, their number and a lower bound of it, by the search that more than two devices need."""
    devices = [d.name for d in plan.machine.devices]
    labels = np.array([devices.index(plan.device_of[n.name]) for n in plan.graph.nodes])
    sources, readers = plan.graph.edges
    first = np.searchsorted(readers, np.arange(len(labels) + 1)).astype(np.int64)
    turns, cost, proven = cheapest_turns((first, sources), labels, np.ones(len(devices)), work)
    return turns.tolist(), cost, proven


@given(plans(max_nodes=10))
@example(chain("cgcgvc"))
def test_any_limit_on_work_gives_turns_in_which_the_graph_can_run(plan: Plan) -> None:
    least = fewest_partitions(plan)
    for work in (0, 40, schedule.EXACT_WORK):
        turns, cost, proven = turns_of(plan, work)
        assert proven <= least <= cost == max(turns) + 1 and set(turns) == set(range(max(turns) + 1))
        device_at: dict[int, str] = {}
        for turn, node, sources in zip(turns, plan.graph.nodes, plan.graph.sources, strict=True):
            assert device_at.setdefault(turn, plan.device_of[node.name]) == plan.device_of[node.name]
            assert all(turns[source] <= turn for source in sources)
    assert proven == cost == least


def test_the_search_falls_back_when_its_work_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = arrows("p1->a1->b1->c1->a2->b2; p2->c2->a3->b3->c3; p3->b4->c4->a4")
    devices = {n.name: n.name[0].upper() for n in graph.nodes}
    labels = np.array(["ABC".index(devices[name]) for name in graph.names])
    exact = fewest_turns(graph, labels, [1, 1, 1])
    monkeypatch.setattr(schedule, "EXACT_WORK", 0)
    assert len(exact) <= len(fewest_turns(graph, labels, [1, 1, 1])) <= len(exact) + 1


def test_a_worse_heuristic_answer_leaves_the_plan_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = chain("cc")
    monkeypatch.setattr("heterocc.passes.merge.fewest_turns", lambda graph, labels, weights: [[0], [1]])
    assert JOIN.run(plan) is plan


# ---- islands ------------------------------------------------------------------------------------------------------


def island(work: float, word: str = "cgc", **machine: object) -> Plan:
    """A chain with one GPU node in the middle that does `work`; the rest is as heavy as no island would move."""
    start = chain(word)
    flops = {n.name: work if word[i] == "g" else 1e9 for i, n in enumerate(start.graph.nodes)}
    fields = {"devices": start.machine.devices, "work": flops, "refusals": {"GPU": {"n0": "no", "n2": "no"}}, **machine}
    return Plan(start.graph, Machine(**fields), start.partitions)  # type: ignore[arg-type]


def devices(plan: Plan) -> list[str]:
    return [p.device for p in plan.partitions]


def test_a_small_island_is_pulled_onto_its_neighbours_device() -> None:
    merged = Merge().run(island(work=1e3))
    assert merged.partitions == (Partition("CPU", ("n0", "n1", "n2")),)
    assert merged.transfers == ()


def test_an_island_with_enough_work_stays() -> None:
    assert devices(Merge().run(island(work=1e9))) == ["CPU", "GPU", "CPU"]


def test_islands_off_keeps_every_device() -> None:
    assert devices(JOIN.run(island(work=1e3))) == ["CPU", "GPU", "CPU"]


def test_an_island_of_unknown_work_stays() -> None:
    assert devices(Merge().run(chain("cgc"))) == ["CPU", "GPU", "CPU"]


def test_a_pinned_island_stays() -> None:
    start = island(work=1e3)
    assert devices(Merge().run(start.with_partitions(start.partitions, {"n1": "GPU"}))) == ["CPU", "GPU", "CPU"]


def test_an_island_that_the_neighbour_refuses_stays() -> None:
    start = island(work=1e3, refusals={"GPU": {"n0": "no", "n2": "no"}, "CPU": {"n1": "no"}})
    assert devices(Merge().run(start)) == ["CPU", "GPU", "CPU"]


def test_an_island_that_does_not_fit_stays() -> None:
    cpu = PlacementDevice("CPU", memory=40)
    assert devices(Merge().run(island(work=1e3, devices=(LETTERS["g"], cpu)))) == ["CPU", "GPU", "CPU"]
    roomy = PlacementDevice("CPU", memory=48)
    assert devices(Merge().run(island(work=1e3, devices=(LETTERS["g"], roomy)))) == ["CPU"]


def test_no_island_is_pulled_onto_the_last_resort() -> None:
    start = chain("ogo")
    refusals = {"GPU": {"n0": "no", "n2": "no"}}
    machine = Machine(start.machine.devices, refusals, dict.fromkeys(("n0", "n1", "n2"), 1e3))
    assert devices(Merge().run(Plan(start.graph, machine, start.partitions))) == ["ORT", "GPU", "ORT"]


def test_a_chain_of_islands_collapses() -> None:
    start = chain("cgcgcgc")
    refusals = {"GPU": {f"n{i}": "no" for i in (0, 2, 4, 6)}}
    machine = Machine(start.machine.devices, refusals, {n.name: 1e3 for n in start.graph.nodes})
    assert devices(Merge().run(Plan(start.graph, machine, start.partitions))) == ["CPU"]


def test_an_island_beside_other_work_of_its_device_moves_alone() -> None:
    """g1 sits between CPU nodes, g2 is heavy and independent; both share a partition before."""
    graph = arrows("p1->c1->g1->c2; p2->g2")
    machine = Machine(
        (LETTERS["g"], LETTERS["c"]),
        {"GPU": {"c1": "no", "c2": "no"}},
        {"c1": 1e3, "g1": 1e3, "c2": 1e3, "g2": 1e10},
    )
    merged = Merge().run(placed(graph, {"c1": "CPU", "c2": "CPU", "*": "GPU"}, machine))
    assert dict(merged.device_of) == {"c1": "CPU", "g1": "CPU", "c2": "CPU", "g2": "GPU"}
    assert len(merged.partitions) == 2


def test_a_move_that_would_add_a_transfer_is_not_made() -> None:
    """On the CPU, g would save the transfer of a large value but send its three small ones back to the GPU."""
    small = ("g1", "g2", "g3", "back", "y")
    values = {"p": Value("p", "float32", (1,)), "large": Value("large", "float32", (25_000_000,)), **tensors(small)}
    nodes = (
        Node("c", "Op", ("p",), ("large",)),
        Node("g", "Op", ("large",), ("g1", "g2", "g3")),
        Node("c2", "Op", ("g1",), ("back",)),
        Node("h", "Op", ("g1", "g2", "g3", "back"), ("y",)),
    )
    graph = Graph("g", nodes, values, ("p",), ("y",))
    refusals = {"GPU": {"c": "no", "c2": "no"}, "CPU": {"h": "no"}}
    machine = Machine((LETTERS["g"], LETTERS["c"]), refusals, dict.fromkeys(("c", "g", "c2", "h"), 1.0))
    start = placed(graph, {"c": "CPU", "c2": "CPU", "*": "GPU"}, machine)
    moved = placed(graph, {"c": "CPU", "c2": "CPU", "g": "CPU", "*": "GPU"}, machine)
    assert seconds(moved) < seconds(start)
    assert len(moved.transfers) > len(start.transfers)
    assert Merge().run(start).device_of == start.device_of


def test_a_whole_partition_moves_to_a_device_that_does_not_run_next_to_it() -> None:
    graph = arrows("p->c->v->g; c->g")
    refusals = {"GPU": {"c": "no", "v": "no"}, "VULKAN": {"c": "no", "g": "no"}, "CPU": {"v": "no"}}
    machine = Machine((LETTERS["g"], LETTERS["v"], LETTERS["c"]), refusals, dict.fromkeys("cvg", 1.0))
    merged = Merge().run(placed(graph, {"c": "CPU", "v": "VULKAN", "g": "GPU"}, machine))
    assert devices(merged) == ["CPU", "VULKAN", "CPU"]
    assert len(merged.transfers) == 2


def test_moves_of_one_sweep_do_not_get_in_each_others_way() -> None:
    """Each move by itself keeps three partitions; a partition that gave and took nodes in one sweep would make four."""
    graph = arrows("p->n0; p->n1; p->n2; p->n3; n0->n4; n2->n5; n4->n5")
    machine = Machine(
        (PlacementDevice("A", flops=1e10), PlacementDevice("B", flops=1e11), PlacementDevice("C", flops=1e9)),
        {"B": {"n4": "no"}},
        {"n0": 1e4, "n1": 1e4, "n2": 1e3, "n3": 1e6, "n4": 1e2, "n5": 1e3},
    )
    start = placed(graph, {"n0": "B", "n2": "B", "n5": "A", "*": "C"}, machine)
    assert len(JOIN.run(start).partitions) == 3
    assert len(Merge().run(start).partitions) <= 3


def test_shape_arithmetic_is_not_pulled_off_the_cpu() -> None:
    ints = tensors(["s", "k", "c"], (4,), "int64")
    values = {**tensors(["x", "y"], (4,)), **ints}
    nodes = (Node("concat", "Concat", ("s", "k"), ("c",)), Node("reshape", "Reshape", ("x", "c"), ("y",)))
    graph = Graph("shapes", nodes, values, ("x", "s"), ("y",), frozenset(["k"]))
    machine = Machine((LETTERS["g"], LETTERS["c"]), {"CPU": {"reshape": "no"}}, {"concat": 1.0, "reshape": 1.0})
    start = placed(graph, {"concat": "CPU", "reshape": "GPU"}, machine)
    assert devices(Merge().run(start)) == ["CPU", "GPU"]
