"""Explanations: reasons of nodes, costs of moves and transfers, notes, and the record in a bundle."""

from __future__ import annotations

import dataclasses
import math

import pytest

from heterocc.artifacts.errors import AffinityPatternError
from heterocc.compiler.placement.side_by_side import plans_beside
from heterocc.passes import placement
from heterocc.passes.affinity import Affinity, Rule
from heterocc.passes.base import policy_pipeline
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.estimate import plan_seconds
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.record import read_record, write_record
from heterocc.passes.explain.text import explanation_text, nodes_text
from heterocc.passes.graph import Graph
from heterocc.passes.plan import Plan, consecutive
from heterocc.passes.show.printer import summary
from tests.passes.graphs import chain_graph
from tests.passes.optimum.cost import random_problem

GPU, CPU, ORT = (
    PlacementDevice("GPU", "opencl"),
    PlacementDevice("CPU"),
    PlacementDevice("ORT", "ort", last_resort=True),
)


def machine_of(graph: Graph, gpu_us: float, cpu_us: float, refused: str | None = "n2") -> Machine:
    """GPU, then CPU, with equal times for all nodes; the GPU refuses one node."""
    times = {d: {n.name: us * 1e-6 for n in graph.nodes} for d, us in (("GPU", gpu_us), ("CPU", cpu_us))}
    refusals = {"GPU": {refused: "its loops cannot be bound"}} if refused else {}
    return Machine((GPU, CPU), refusals, default_link=Link(1e-5, 1e10), seconds=times)


def explained(policy: str, machine: Machine, graph: Graph, affinity: Affinity | None = None) -> Explanation:
    plan = Plan.initial(graph, machine, affinity)
    passes = policy_pipeline(policy)
    for pass_ in passes:
        plan = pass_.run(plan)
    return Explanation(plan, passes, policy)


def test_a_node_that_merge_pulled_names_the_pass_and_the_node_and_reason_that_block_the_other_device() -> None:
    graph = chain_graph(5)
    found = explained("merge", machine_of(graph, 1, 2), graph)
    first = found.named("n0")[0]
    assert (first.device, first.why, first.blocker) == ("CPU", "island", "n2")
    assert "merge moved it from GPU to CPU, to its neighbour Relu 'chain/2', which GPU cannot run (its loops" in (
        first.sentence
    )
    (other,) = first.others
    # 1 us less on the GPU, and a transfer of 10 us to its reader
    assert other.reason is None and math.isclose(other.seconds or 0.0, -1e-6 + 1e-5 + 16e-10, rel_tol=1e-6)
    (note,) = found.notes
    assert "GPU gets none of the 5 nodes: it cannot run Relu 'chain/2'" in note and "merge moved the 4 nodes" in note


def test_priority_refusals_pins_and_shapes_are_told_apart() -> None:
    graph = chain_graph(5)
    rule = Rule("name", "n4", "CPU", "place.toml:3")
    found = explained("greedy", machine_of(graph, 1, 100), graph, Affinity(rules=(rule,)))
    why = {r.node: (r.device, r.why) for r in found.nodes}
    assert why["n0"] == ("GPU", "priority") and why["n2"] == ("CPU", "only") and why["n4"] == ("CPU", "pin")
    assert found.named("chain/4")[0].sentence == "pinned to CPU by place.toml:3: 'n4'"
    assert found.named("n4")[0].others[0].reason == "it is pinned to CPU"
    assert "GPU: its loops cannot be bound" in found.named("n2")[0].sentence


def test_the_optimal_policy_gives_cost_as_the_reason() -> None:
    graph = chain_graph(3)
    found = explained("optimal", machine_of(graph, 5, 1), graph)
    assert {r.why for r in found.nodes if r.node != "n2"} == {"cost"}
    assert "beside Relu 'chain/2'" in found.named("n0")[0].sentence


def test_a_pin_that_pulls_its_neighbours_is_named_as_a_pin() -> None:
    graph = chain_graph(5)
    pin = Affinity(rules=(Rule("name", "n2", "CPU"),))
    found = explained("merge", machine_of(graph, 1, 2, None), graph, pin)
    assert "to its neighbour Relu 'chain/2', which is pinned to CPU: transfers" in found.named("n0")[0].sentence
    (note,) = found.notes
    assert note.startswith("GPU gets none of the 5 nodes: Relu 'chain/2' is pinned to CPU, and merge moved the 4 nodes")
    assert summary(found.plan).endswith("(GPU alone: not possible, Relu 'chain/2' is pinned to CPU)")
    best = explained("optimal", machine_of(graph, 1, 1, None), graph, pin)
    assert "beside Relu 'chain/2', which is pinned to CPU" in best.named("n0")[0].sentence


def test_a_note_counts_nodes_that_a_device_could_run_and_that_were_not_moved_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "shape_nodes", lambda _: frozenset(["n0"]))  # the CPU keeps them
    graph = chain_graph(3)
    (note,) = explained("merge", machine_of(graph, 9, 1), graph).notes
    assert "merge moved 1 of the 2 nodes that it could run on CPU" in note


def test_every_device_without_a_node_has_a_note_if_costs_decide() -> None:
    graph = chain_graph(3)
    times = {d: {n.name: us * 1e-6 for n in graph.nodes} for d, us in (("GPU", 9), ("GPU.1", 8), ("CPU", 1))}
    devices = (GPU, dataclasses.replace(GPU, name="GPU.1"), CPU)
    machine = Machine(devices, default_link=Link(1e-5, 1e10), seconds=times)
    assert explained("optimal", machine, graph).notes == tuple(
        f"{name} gets none of the 3 nodes: mincut placed the 3 nodes that it could run on CPU, where a run takes less "
        "time"
        for name in ("GPU", "GPU.1")
    )


def test_a_last_resort_that_gets_no_node_has_no_note() -> None:
    """It is in the default list, so that every compile would have one."""
    graph = chain_graph(2)
    times = {d: {n.name: 1e-6 for n in graph.nodes} for d in ("CPU", "ORT")}
    found = explained("merge", Machine((ORT, CPU), seconds=times), graph)
    assert found.notes == ()
    assert found.nodes[0].sentence == (
        "no other listed device can run it, except ORT, listed for what the others cannot run"
    )


def test_a_plan_slower_than_the_cpu_alone_names_the_policy_that_is_faster() -> None:
    graph = chain_graph(4)
    slow = explained("merge", machine_of(graph, 10, 1, None), graph)
    (note,) = slow.notes
    assert note.startswith("the plan is estimated at 40.0 us, CPU alone at 4.0 us (more than 2 times faster)")
    assert "--policy optimal" in note and "--policy measured" in note
    assert explained("merge", machine_of(graph, 1.9, 1, None), graph).notes == ()
    pinned = Affinity(rules=(Rule("name", "n0", "GPU"),))
    assert explained("merge", machine_of(graph, 10, 1, None), graph, pinned).notes == ()


@pytest.mark.parametrize("seed", range(8))
def test_what_a_move_costs_is_the_difference_of_the_plans_estimates(seed: int) -> None:
    graph, machine = random_problem(seed, 12, 3, overhead=False)
    machine = dataclasses.replace(machine, default_link=Link(), links={p: k for p, k in machine.links.items() if k})
    found = explained("greedy", machine, graph)
    before = plan_seconds(found.plan) or 0.0
    for reason in found.nodes:
        for other in reason.others:
            if other.reason is not None:
                continue
            moved = found.plan.with_partitions(consecutive(graph, {**found.plan.device_of, reason.node: other.device}))
            assert math.isclose((plan_seconds(moved) or 0.0) - before, other.seconds or 0.0, abs_tol=1e-12)


def test_partitions_and_transfers_follow_each_other_without_a_gap() -> None:
    graph = chain_graph(5, elements=1000)
    found = explained("greedy", machine_of(graph, 1, 100), graph)
    assert [p.device for p in found.partitions] == ["GPU", "CPU", "GPU"]
    starts = [(t.start, t.seconds) for t in found.transfers] + [(p.start, p.seconds) for p in found.partitions]
    clock = 0.0
    for start, seconds in sorted((s or 0.0, d or 0.0) for s, d in starts):
        assert math.isclose(start, clock, abs_tol=1e-12)
        clock += seconds
    assert math.isclose(clock, plan_seconds(found.plan) or 0.0)
    assert [(p.bytes_in, p.bytes_out) for p in found.partitions] == [(0, 4000), (4000, 4000), (4000, 0)]


def test_a_transfer_names_what_keeps_its_writer_and_reader_apart() -> None:
    graph = chain_graph(5)
    found = explained("greedy", machine_of(graph, 1, 100), graph)
    there, back = found.transfers
    assert (there.writer, there.readers) == ("n1", ("n2",)) and (back.writer, back.readers) == ("n2", ("n3",))
    assert there.sentence.startswith("with Relu 'chain/1' on CPU a run would take 99.0 us more, and Relu 'chain/2' ")
    assert "cannot be on GPU (its loops cannot be bound)" in there.sentence


def test_policies_and_single_devices_stand_side_by_side() -> None:
    graph = chain_graph(5)
    found = explained("greedy", machine_of(graph, 1, 2), graph)
    plans = {o.name: o for o in plans_beside(found.plan, "greedy")}
    assert list(plans) == ["greedy", "merge", "optimal", "GPU alone", "CPU alone"]
    assert plans["greedy"].chosen and plans["greedy"].transfers == 2 and plans["merge"].transfers == 0
    assert plans["GPU alone"].why_not == "it cannot run Relu 'chain/2': its loops cannot be bound"
    assert plans["CPU alone"].seconds == pytest.approx(1e-5)
    text = explanation_text(dataclasses.replace(found, others=tuple(plans.values())))
    assert "greedy (this plan)  GPU 4, CPU 1  3" in text and "GPU alone: not possible: it cannot run" in text


def test_the_text_groups_nodes_and_shows_one_in_full() -> None:
    graph = chain_graph(9)
    found = explained("greedy", machine_of(graph, 1, 100), graph)
    text = explanation_text(found)
    assert "GPU, 8 nodes: Relu 'chain/0', Relu 'chain/1', Relu 'chain/3' and 5 more" in text
    assert nodes_text(found.named("chain/3")).splitlines() == [
        "Relu 'chain/3': GPU, p2, 1.0 us",
        "  why: GPU is the first listed device that can run it",
        "  CPU: a run would take 99.0 us more, with this node alone moved",
    ]
    assert len(found.named("chain/*")) == 9
    with pytest.raises(AffinityPatternError, match="'conv' matches no node"):
        found.named("conv")


def test_a_record_gives_the_same_explanation_again() -> None:
    graph = chain_graph(5)
    found = explained("merge", machine_of(graph, 1, 2), graph)
    again = read_record(write_record(found))
    assert explanation_text(again) == explanation_text(found) and again.to_json() == found.to_json()
    for broken in ("[]", "{}", '{"format":2}', "", "[" * 100_000):
        with pytest.raises((ValueError, KeyError, TypeError, RecursionError)):
            read_record(broken)
