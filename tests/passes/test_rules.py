"""Constraints of devices on their partitions, which every policy obeys."""

from __future__ import annotations

import dataclasses
import random

import pytest

from heterocc.artifacts.errors import PinnedDeviceError, UnsupportedOpError
from heterocc.compiler.placement.run_passes import run_pipeline
from heterocc.compiler.placement.side_by_side import plans_beside
from heterocc.passes.affinity import Affinity
from heterocc.passes.base import parse_pipeline, policy_pipeline
from heterocc.passes.cost import Link, Machine, PartitionRules, PlacementDevice
from heterocc.passes.estimate import plan_seconds
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.graph import Graph, Node
from heterocc.passes.plan import Plan, consecutive
from heterocc.passes.rules import rules_broken, without_rules
from heterocc.passes.show.printer import summary
from heterocc.passes.show.serialize import plan_from_json, plan_to_json
from tests.passes.graphs import tensors
from tests.passes.optimum.cost import random_problem

POLICIES = ["greedy", "merge", "optimal"]


def row(*op_types: str) -> Graph:
    """A chain of nodes n0, n1, … of these types."""
    values = [f"v{i}" for i in range(len(op_types) + 1)]
    nodes = tuple(Node(f"n{i}", op, (values[i],), (values[i + 1],)) for i, op in enumerate(op_types))
    return Graph("row", nodes, tensors(values), (values[0],), (values[-1],))


def placed(policy: str, graph: Graph, rules: PartitionRules, *refused: str, affinity: Affinity | None = None) -> Plan:
    """The plan on A, ten times faster, with rules and refusing some nodes, and B; links are fast."""
    seconds = {d: {n.name: us * 1e-6 for n in graph.nodes} for d, us in (("A", 10), ("B", 100))}
    devices = (PlacementDevice("A", rules=rules), PlacementDevice("B"))
    machine = Machine(devices, {"A": dict.fromkeys(refused, "no")}, default_link=Link(1e-7, 1e12), seconds=seconds)
    return run_pipeline(Plan.initial(graph, machine, affinity), policy_pipeline(policy))


def on_a(plan: Plan) -> list[str]:
    return [n for n, d in plan.device_of.items() if d == "A"]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_partition_starts_or_ends_with_a_type_that_may_not(policy: str) -> None:
    graph = row("Reshape", "Cast", "Conv", "Reshape", "Conv", "Cast", "Reshape")
    rules = PartitionRules(never_first=("Reshape", "Cast"), never_last=("Reshape", "Cast"))
    assert on_a(placed(policy, graph, rules)) == ["n2", "n3", "n4"]
    assert on_a(placed(policy, graph, PartitionRules())) == [n.name for n in graph.nodes]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_type_goes_only_together_with_its_neighbour(policy: str) -> None:
    graph = row("Relu", "Conv", "Relu", "Loop", "Relu", "Loop", "Relu", "Relu")
    beside = PartitionRules(only_beside=(("Relu", ("Conv",)),))
    assert on_a(placed(policy, graph, beside, "n3", "n5")) == ["n0", "n1", "n2"]
    anything = PartitionRules(only_beside=(("Relu", ()),))
    assert on_a(placed(policy, graph, anything, "n3", "n5")) == ["n0", "n1", "n2", "n6", "n7"]


@pytest.mark.parametrize("policy", POLICIES)
def test_small_partitions_are_left_to_other_devices(policy: str) -> None:
    graph = row("Conv", "Loop", "Conv", "Conv", "Conv")
    assert on_a(placed(policy, graph, PartitionRules(min_nodes=2), "n1")) == ["n2", "n3", "n4"]
    assert on_a(placed(policy, graph, PartitionRules(min_seconds=25e-6), "n1")) == ["n2", "n3", "n4"]
    assert on_a(placed(policy, graph, PartitionRules(min_nodes=4), "n1")) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_the_partitions_that_gain_most_stay_if_there_may_not_be_more(policy: str) -> None:
    graph = row("Conv", "Loop", "Conv", "Conv", "Conv", "Loop", "Conv", "Conv")
    for most, expected in ((3, "n0 n2 n3 n4 n6 n7"), (2, "n2 n3 n4 n6 n7"), (1, "n2 n3 n4")):
        assert on_a(placed(policy, graph, PartitionRules(max_count=most), "n1", "n5")) == expected.split()


def test_the_reason_names_the_rule_and_other_policies_are_compared_without_it() -> None:
    graph = row("Reshape", "Conv", "Conv")
    plan = placed("merge", graph, PartitionRules(never_first=("Reshape",)))
    assert plan.machine.refusal("A", "n0") == "a rule of the device: no partition starts with Reshape"
    assert not without_rules(plan.machine).refusals["A"]
    found = Explanation(plan, policy_pipeline("merge"), "merge").named("n0")[0]
    assert found.why == "only" and "no partition starts with Reshape" in found.sentence
    (_, _, optimal, alone, _) = plans_beside(plan, "merge")
    assert optimal.devices == (("A", 2), ("B", 1))
    assert alone.why_not == "Reshape 'n0': a rule of the device: no partition starts with Reshape"


def test_a_pin_that_breaks_a_rule_and_a_node_that_fits_nowhere_are_errors() -> None:
    graph = row("Reshape", "Conv")
    rules = PartitionRules(never_first=("Reshape",))
    pin = Affinity.from_mapping({"n0": "A"})
    with pytest.raises(PinnedDeviceError, match="'n0' is pinned to A, but breaks a rule of the device: no partition"):
        placed("merge", graph, rules, affinity=pin)
    machine = Machine((PlacementDevice("A", rules=rules),), seconds={"A": {"n0": 1e-6, "n1": 1e-6}})
    with pytest.raises(UnsupportedOpError, match="A: a rule of the device: no partition starts with Reshape"):
        run_pipeline(Plan.initial(graph, machine), policy_pipeline("merge"))


def test_the_optimal_policy_leaves_a_device_out_if_its_rules_cost_more_than_it_saves() -> None:
    graph = row("Conv", "Relu", "Conv", "Relu")
    seconds = {"A": {n.name: 5e-6 for n in graph.nodes}, "B": {n.name: 10e-6 for n in graph.nodes}}
    devices = (PlacementDevice("A", rules=PartitionRules(never_last=("Relu",))), PlacementDevice("B"))
    machine = Machine(devices, default_link=Link(2e-5, 1e12), seconds=seconds)
    plan = run_pipeline(Plan.initial(graph, machine), policy_pipeline("optimal"))
    assert on_a(plan) == [] and plan_seconds(plan) == pytest.approx(4e-5)
    assert plan.bound is not None and plan.bound <= 4e-5


@pytest.mark.parametrize("policy", POLICIES)
def test_plans_of_random_graphs_break_no_rule_and_keep_pins(policy: str) -> None:
    passes = policy_pipeline(policy) if policy != "optimal" else parse_pipeline("manual,mincut{effort=0}")
    for seed in range(25 if policy != "optimal" else 8):
        rng = random.Random(seed)
        graph, machine = random_problem(seed, 20, 3)
        nodes = tuple(dataclasses.replace(n, op_type=rng.choice(["Conv", "Relu", "Cast"])) for n in graph.nodes)
        graph = dataclasses.replace(graph, nodes=nodes)
        rules = PartitionRules(
            never_first=tuple(rng.sample(["Relu", "Cast"], rng.randint(0, 2))),
            never_last=tuple(rng.sample(["Relu", "Cast"], rng.randint(0, 2))),
            only_beside=(("Cast", ("Conv",)),) if rng.random() < 0.5 else (),
            min_nodes=rng.randint(1, 4),
            max_count=rng.choice([None, 1, 2]),
        )
        ruled, free, last = machine.devices
        devices = (dataclasses.replace(ruled, rules=rules), free, dataclasses.replace(last, rules=rules))
        # The second device has no rules and can run every node.
        refusals = {d: r for d, r in machine.refusals.items() if d != free.name}
        machine = dataclasses.replace(machine, devices=devices, refusals=refusals, links={}, default_link=Link())
        plan = run_pipeline(Plan.initial(graph, machine), passes)
        assert not rules_broken(plan)
        assert plan_from_json(plan_to_json(plan)).machine == plan.machine


def test_the_summary_does_not_estimate_a_device_alone_whose_rules_forbid_it() -> None:
    graph = row("Relu", "Conv")
    machine = placed("greedy", graph, PartitionRules()).machine
    ruled = dataclasses.replace(machine.devices[0], rules=PartitionRules(never_first=("Relu",)))
    machine = dataclasses.replace(machine, devices=(ruled, machine.devices[1]))
    plan = Plan(graph, machine, consecutive(graph, {"n0": "B", "n1": "B"}))
    assert summary(plan).endswith(
        "(A alone: not possible, Relu 'n0': a rule of the device: no partition starts with Relu)"
    )
