"""Partitioning cases that are known to be hard on other tools, each held to the fewest partitions there can be."""

from __future__ import annotations

import pytest

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.passes.base import policy_pipeline
from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node
from heterocc.passes.greedy import Greedy
from heterocc.passes.merge import Merge
from heterocc.passes.objective import OBJECTIVES
from heterocc.passes.plan import Plan
from tests.passes.graphs import arrows, fewest_partitions, placed, tensors

CASES = {
    1: ("p->add->sub->reshape", {"add": "A", "sub": "B", "reshape": "A"}, 3),
    2: ("p->add1->add2->sub->add3->reshape; add1->add3", {"sub": "B", "*": "A"}, 3),
    3: ("p->a1->b1->a2->b2->a3; a1->a3", {"b1": "B", "b2": "B", "*": "A"}, 5),
    4: ("p->a->b->c->d", {"a": "A", "b": "B", "c": "A", "d": "B"}, 4),
    5: ("p1->add1; p2->add2", {"*": "A"}, 1),
    6: ("p->add->s1; add->s2", {"*": "A"}, 1),
    7: ("p->A1->X; k->X; A1->B1->C; k->C", {"B1": "B", "*": "A"}, 3),
    8: ("p->A1->B1->C; k->B1; k->X->C", {"B1": "B", "*": "A"}, 3),
    9: ("p->A1->B1; k->A1; k->X", {"B1": "B", "*": "A"}, 2),
    10: ("p->A1->X; A1->C; A1->B1; k->X; k->C", {"B1": "B", "*": "A"}, 2),
    11: ("p->NA->NB->NC; k->NA; k->NB; k->NC", {"NB": "B", "*": "A"}, 3),
    13: ("p1->A1; p2->A1; A1->X; k->X; A1->B1->C; p2->C; B1->F; k->F", {"B1": "B", "*": "A"}, 3),
    15: ("p1->add1->add2; p2 unused", {"add1": "A", "add2": "B"}, 2),
    16: ("p->add->sub->reshape", {"add": "D1", "sub": "D2", "reshape": "D3"}, 3),
    19: ("S1->A2; S1->S2; A1->A3; S2->A3; A4", {"S1": "B", "S2": "B", "*": "A"}, 2),
}

JOINING = [o for o in OBJECTIVES if o != "overlap"]
"""Objectives with as few partitions as possible; `overlap` cuts more, so that devices work at the same time."""


def run_case(number: int) -> Plan:
    text, devices, _ = CASES[number]
    return Merge().run(placed(arrows(text), devices))


def by_policy(number: int, policy: str, objective: str = "latency") -> tuple[Plan, Plan]:
    """The plan of a policy for a case whose nodes are all pinned, and the placement that the pins ask for."""
    text, devices, _ = CASES[number]
    start = placed(arrows(text), devices)
    plan = Plan(start.graph, start.machine, Plan.initial(start.graph, start.machine).partitions, start.device_of)
    for pass_ in policy_pipeline(policy, objective):
        plan = pass_.run(plan)
    return plan, start


@pytest.mark.parametrize("number", CASES)
def test_merge_makes_the_fewest_partitions_of_the_case(number: int) -> None:
    text, devices, best = CASES[number]
    start = placed(arrows(text), devices)
    assert fewest_partitions(start) == best
    merged = Merge().run(start)
    assert len(merged.partitions) == best
    assert merged.device_of == start.device_of
    assert len(merged.transfers) == len(start.transfers)


@pytest.mark.parametrize("number", CASES)
@pytest.mark.parametrize("policy, objective", [("merge", "latency"), *(("optimal", o) for o in JOINING)])
def test_every_policy_that_joins_keeps_pins_and_makes_the_fewest_partitions(
    policy: str, objective: str, number: int
) -> None:
    plan, start = by_policy(number, policy, objective)
    assert plan.device_of == start.device_of and len(plan.partitions) == CASES[number][2]


@pytest.mark.parametrize("number", CASES)
def test_greedy_keeps_pins_and_joins_only_what_is_connected(number: int) -> None:
    plan, start = by_policy(number, "greedy")
    assert plan.device_of == start.device_of
    assert len(plan.partitions) == {9: 3, 19: 4}.get(number, CASES[number][2])


@pytest.mark.parametrize("number", CASES)
def test_the_names_of_all_original_nodes_are_covered(number: int) -> None:
    plan = run_case(number)
    assert sorted(n for p in plan.partitions for n in p.nodes) == sorted(n.name for n in plan.graph.nodes)


def test_a_value_read_twice_on_a_device_leaves_its_partition_once() -> None:
    plan = run_case(2)
    (first,) = (i for i, part in enumerate(plan.partitions) if "add1" in part.nodes)
    assert "add2" in plan.partitions[first].nodes
    assert plan.outputs_of(first) == ("add1", "add2")
    assert [(t.value, t.target) for t in plan.transfers] == [("add2", "B"), ("sub", "A")]


def test_a_constant_is_cloned_and_never_transferred() -> None:
    plan = run_case(8)
    assert [t.value for t in plan.transfers] == ["A1", "B1"]
    assert not any("k" in plan.inputs_of(i) for i in range(len(plan.partitions)))


def test_an_unused_input_stays_in_the_signature_and_makes_no_partition() -> None:
    plan = run_case(15)
    assert plan.graph.inputs == ("p1", "p2")
    assert not any("p2" in plan.inputs_of(i) for i in range(len(plan.partitions)))


def test_inputs_and_outputs_keep_the_order_of_the_model() -> None:
    graph = arrows("p2->b; p1->a; a->c; b->c; b->d")
    plan = policy_pipeline("merge")
    result = Plan.initial(graph, Machine((PlacementDevice("A"),)))
    for pass_ in plan:
        result = pass_.run(result)
    assert (result.graph.inputs, result.graph.outputs) == (("p2", "p1"), ("c", "d"))
    assert result.inputs_of(0) == ("p2", "p1")
    assert result.outputs_of(0) == ("c", "d")


LACKS = {"D0": {"sub": "D0 lacks Sub"}, "D1": {"reshape": "D1 lacks Reshape"}}


def test_only_what_the_first_device_lacks_goes_to_the_second() -> None:
    machine = Machine((PlacementDevice("D0"), PlacementDevice("D1")), LACKS)
    plan = Greedy().run(Plan.initial(arrows("p->sub->reshape"), machine))
    assert dict(plan.device_of) == {"sub": "D1", "reshape": "D0"}


def test_one_device_alone_reports_exactly_the_node_it_lacks() -> None:
    machine = Machine((PlacementDevice("D0"),), LACKS)
    with pytest.raises(UnsupportedOpError, match="no device can run Sub 'sub'") as caught:
        Greedy().run(Plan.initial(arrows("p->sub->reshape"), machine))
    assert "D0: D0 lacks Sub" in caught.value.message
    assert "reshape" not in str(caught.value)


def test_a_dynamic_shape_on_a_static_device_fails_and_says_why() -> None:
    refusals = {"D0": {"sub": "lacks Sub"}, "D1": {"sub": "the shape of 'p' is dynamic", "reshape": "dynamic"}}
    machine = Machine((PlacementDevice("D0"), PlacementDevice("D1")), refusals)
    with pytest.raises(UnsupportedOpError, match="D1: the shape of 'p' is dynamic"):
        Greedy().run(Plan.initial(arrows("p->sub->reshape"), machine))


def four_adds() -> Graph:
    values = tensors(["p", "k", "a1", "a2", "a3", "a4"], (256,))
    nodes = tuple(Node(f"add{i}", "Add", (f"a{i - 1}" if i > 1 else "p", "k"), (f"a{i}",)) for i in range(1, 5))
    return Graph("adds", nodes, values, ("p",), ("a4",), frozenset(["k"]))


ONE = 2 * 1024
TWO = 3 * 1024
"""Bytes of one add (its output and the constant) and of two, which share the constant."""


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ((TWO, ONE, ONE), (("add1", "add2"), ("add3",), ("add4",))),
        ((TWO, TWO), (("add1", "add2"), ("add3", "add4"))),
        ((None, ONE), (("add1", "add2", "add3", "add4"),)),
    ],
)
def test_a_full_device_spills_to_the_next(
    memory: tuple[int | None, ...], expected: tuple[tuple[str, ...], ...]
) -> None:
    machine = Machine(tuple(PlacementDevice(f"D{i}", memory=m) for i, m in enumerate(memory)))
    plan = Merge().run(Greedy().run(Plan.initial(four_adds(), machine)))
    assert tuple(p.nodes for p in plan.partitions) == expected


def test_too_little_memory_everywhere_is_an_error_with_the_figures() -> None:
    machine = Machine((PlacementDevice("D0", memory=TWO), PlacementDevice("D1", memory=ONE)))
    with pytest.raises(UnsupportedOpError, match="'add4'") as caught:
        Greedy().run(Plan.initial(four_adds(), machine))
    assert "D0: needs 1024 bytes, 3072 of 3072 are in use" in caught.value.message
    assert "D1: needs 1024 bytes, 2048 of 2048 are in use" in caught.value.message
