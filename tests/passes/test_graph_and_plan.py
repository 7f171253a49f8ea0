"""An invalid graph, machine or plan cannot be built."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import pytest

from heterocc.passes.affinity import Affinity, Rule
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.plan import UNPLACED, Partition, Plan
from tests.passes.graphs import arrows, chain, chain_graph, placed, tensors

CPU = Machine((PlacementDevice("CPU"),))
NO_PINS: Mapping[str, str] = MappingProxyType({})


def test_graph_rejects_a_node_that_reads_what_a_later_one_writes() -> None:
    nodes = (Node("a", "Relu", ("v",), ("u",)), Node("b", "Relu", ("x",), ("v",)))
    with pytest.raises(ValueError, match="'a' reads 'v' before it is written"):
        Graph("g", nodes, tensors(["x", "u", "v"]), ("x",), ("u",))


def test_graph_rejects_a_value_written_twice() -> None:
    nodes = (Node("a", "Relu", ("x",), ("u",)), Node("b", "Relu", ("x",), ("u",)))
    with pytest.raises(ValueError, match="'u' is written twice"):
        Graph("g", nodes, tensors(["x", "u"]), ("x",), ("u",))


def test_graph_rejects_two_nodes_of_one_name() -> None:
    nodes = (Node("a", "Relu", ("x",), ("u",)), Node("a", "Relu", ("x",), ("v",)))
    with pytest.raises(ValueError, match="two nodes are named 'a'"):
        Graph("g", nodes, tensors(["x", "u", "v"]), ("x",), ("u",))


def test_graph_rejects_an_output_that_nobody_writes() -> None:
    with pytest.raises(ValueError, match="'y' is never written"):
        Graph("g", (), tensors(["x", "y"]), ("x",), ("y",))


def test_graph_rejects_a_value_without_an_entry() -> None:
    with pytest.raises(ValueError, match="'u' has no entry"):
        Graph("g", (Node("a", "Relu", ("x",), ("u",)),), tensors(["x"]), ("x",), ())


def test_an_input_or_a_constant_may_be_an_output() -> None:
    graph = Graph("g", (), tensors(["x", "k"]), ("x",), ("x", "k"), frozenset(["k"]))
    assert Plan.initial(graph, CPU).partitions == ()


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (Value("v", "float32", (2, 3)), 24),
        (Value("v", "float16", ()), 2),
        (Value("v", "int64", (0, 5)), 0),
        (Value("v", "float32", (2, None)), 0),
        (Value("v", "float32", None), 0),
        (Value("v", "string", (2,)), 0),
    ],
)
def test_bytes_of_a_value_are_known_only_for_static_numeric_tensors(value: Value, nbytes: int) -> None:
    assert value.nbytes == nbytes


def test_machine_rejects_an_empty_list_and_a_device_listed_twice() -> None:
    with pytest.raises(ValueError, match="at least one device"):
        Machine(())
    with pytest.raises(ValueError, match="listed twice: CPU, CPU"):
        Machine((PlacementDevice("CPU"), PlacementDevice("CPU")))


def test_machine_finds_devices_and_links() -> None:
    fast = Link(1e-6, 1e12)
    machine = Machine((PlacementDevice("A"), PlacementDevice("B")), links={("A", "B"): fast})
    assert machine.link("A", "B") is fast
    assert machine.link("B", "A") == Link()
    assert machine.device("B").name == "B"
    with pytest.raises(KeyError):
        machine.device("C")


def test_the_initial_plan_places_nothing() -> None:
    assert Plan.initial(chain_graph(2), CPU).partitions == (Partition(UNPLACED, ("n0", "n1")),)


class Build(Protocol):
    def __call__(
        self, *parts: tuple[str, tuple[str, ...]], machine: Machine = CPU, pins: Mapping[str, str] = NO_PINS
    ) -> Plan: ...


@pytest.fixture(params=[3, 100])
def build(request: pytest.FixtureRequest) -> Build:
    """Plans of a chain: the stated partitions of its first three nodes, then all others; arrays check the long ones."""
    others = tuple(f"n{i}" for i in range(3, request.param))

    def built(*parts: tuple[str, tuple[str, ...]], machine: Machine = CPU, pins: Mapping[str, str] = NO_PINS) -> Plan:
        last = (Partition("CPU", others),) if others else ()
        return Plan(chain_graph(3 + len(others)), machine, (*(Partition(d, n) for d, n in parts), *last), pins)

    return built


def test_plan_rejects_a_partition_that_reads_from_a_later_one(build: Build) -> None:
    with pytest.raises(ValueError, match="p0 reads 'v0' from the later p1"):
        build(("CPU", ("n1", "n2")), ("CPU", ("n0",)))


def test_plan_rejects_partitions_that_form_a_cycle(build: Build) -> None:
    with pytest.raises(ValueError, match="p0 reads 'v1' from the later p1"):
        build(("CPU", ("n0", "n2")), ("CPU", ("n1",)))


def test_plan_rejects_a_node_in_two_partitions(build: Build) -> None:
    with pytest.raises(ValueError, match="'n1' is in p0 and p1"):
        build(("CPU", ("n0", "n1")), ("CPU", ("n1", "n2")))


def test_plan_rejects_a_node_in_no_partition(build: Build) -> None:
    with pytest.raises(ValueError, match="'n2' is in no partition"):
        build(("CPU", ("n0", "n1")))


def test_plan_rejects_an_empty_partition(build: Build) -> None:
    with pytest.raises(ValueError, match="p1 is empty"):
        build(("CPU", ("n0", "n1", "n2")), ("CPU", ()))


def test_plan_rejects_an_unknown_device_and_an_unknown_node(build: Build) -> None:
    with pytest.raises(ValueError, match="unknown device 'GPU'"):
        build(("GPU", ("n0", "n1", "n2")))
    with pytest.raises(ValueError, match="unknown node 'm9'"):
        build(("CPU", ("n0", "n1", "n2", "m9")))


def test_plan_rejects_nodes_out_of_graph_order(build: Build) -> None:
    with pytest.raises(ValueError, match="p0 are not in graph order"):
        build(("CPU", ("n1", "n0", "n2")))


def test_plan_rejects_a_node_on_a_device_that_refuses_it(build: Build) -> None:
    machine = Machine((PlacementDevice("CPU"),), {"CPU": {"n1": "no kernel"}})
    with pytest.raises(ValueError, match="'CPU' cannot run node 'n1': no kernel"):
        build(("CPU", ("n0", "n1", "n2")), machine=machine)


def test_plan_rejects_a_broken_pin_and_a_pin_on_no_node(build: Build) -> None:
    machine = Machine((PlacementDevice("CPU"), PlacementDevice("GPU")))
    with pytest.raises(ValueError, match="'n1' is pinned to GPU but placed on CPU"):
        build(("CPU", ("n0", "n1", "n2")), machine=machine, pins={"n1": "GPU"})
    with pytest.raises(ValueError, match="unknown node 'm9' is pinned"):
        build(("CPU", ("n0", "n1", "n2")), pins={"m9": "CPU"})


def test_a_value_is_transferred_once_per_device() -> None:
    plan = placed(arrows("p->a; a->b1; a->b2; a->c"), {"a": "A", "b1": "B", "b2": "B", "c": "C"})
    assert [(t.value, t.source, t.target, t.nbytes) for t in plan.transfers] == [
        ("a", "A", "B", 16),
        ("a", "A", "C", 16),
    ]


def test_graph_inputs_and_outputs_are_no_transfers() -> None:
    assert chain("g").transfers == ()
    assert len(chain("gc").transfers) == 1


def test_automatic_affinity_takes_no_rules() -> None:
    with pytest.raises(ValueError, match="does not allow rules"):
        Affinity("automatic", (Rule("name", "n0", "CPU"),))
