"""greedy: the first listed device that can."""

from __future__ import annotations

import pytest
from hypothesis import given

from heterocc.artifacts.errors import PinnedDeviceError, UnsupportedOpError
from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.greedy import Greedy
from heterocc.passes.placement import overfull
from heterocc.passes.plan import Plan
from heterocc.passes.shapes import shape_nodes
from tests.passes.graphs import arrows, chain_graph, plans, tensors

GPU = PlacementDevice("GPU", "opencl")
CPU = PlacementDevice("CPU", "cpu")
ORT = PlacementDevice("ORT", "ort", last_resort=True)


def greedy(graph: Graph, machine: Machine) -> dict[str, str]:
    return dict(Greedy().run(Plan.initial(graph, machine)).device_of)


def test_greedy_follows_the_order_of_the_device_list() -> None:
    graph = chain_graph(2)
    assert greedy(graph, Machine((GPU, CPU))) == {"n0": "GPU", "n1": "GPU"}
    assert greedy(graph, Machine((CPU, GPU))) == {"n0": "CPU", "n1": "CPU"}


@pytest.mark.parametrize("devices", [(ORT, GPU, CPU), (GPU, CPU, ORT)])
def test_the_last_resort_gets_only_what_no_other_device_runs(devices: tuple[PlacementDevice, ...]) -> None:
    machine = Machine(devices, {"GPU": {"n0": "no kernel", "n1": "no kernel"}, "CPU": {"n1": "no kernel"}})
    assert greedy(chain_graph(3), machine) == {"n0": "CPU", "n1": "ORT", "n2": "GPU"}


def test_a_node_that_nobody_can_run_names_every_device_and_its_reason() -> None:
    machine = Machine((GPU, CPU), {"GPU": {"n1": "no float64"}, "CPU": {"n1": "known to be wrong"}})
    with pytest.raises(UnsupportedOpError) as caught:
        greedy(chain_graph(3, name="m.onnx"), machine)
    assert str(caught.value) == (
        "error[HC201]: no device can run Relu 'chain/1' (GPU: no float64; CPU: known to be wrong)\n"
        "  --> m.onnx: node 'chain/1' (Relu)\n"
        "  hint: see query_model for what each device can run"
    )


def test_the_hint_does_not_name_ort_if_it_is_listed() -> None:
    machine = Machine((CPU, ORT), {"CPU": {"n0": "a"}, "ORT": {"n0": "b"}})
    with pytest.raises(UnsupportedOpError) as caught:
        greedy(chain_graph(1), machine)
    assert caught.value.hint == "see query_model for what each device can run"
    assert "hint: see `heterocc query` for what each device can run" in caught.value.command_text()


def test_greedy_keeps_pins_and_gives_them_memory_first() -> None:
    graph = chain_graph(3, elements=256)
    machine = Machine((PlacementDevice("GPU", memory=1024), CPU))
    start = Plan.initial(graph, machine).with_partitions(Plan.initial(graph, machine).partitions, {"n2": "GPU"})
    assert dict(Greedy().run(start).device_of) == {"n0": "CPU", "n1": "CPU", "n2": "GPU"}


def test_pins_that_overfill_a_device_are_an_error_with_the_figures() -> None:
    graph = chain_graph(2, elements=256)
    start = Plan.initial(graph, Machine((PlacementDevice("GPU", memory=1500), CPU)))
    start = start.with_partitions(start.partitions, {"n0": "GPU", "n1": "GPU"})
    with pytest.raises(PinnedDeviceError, match="GPU lacks memory for Relu 'chain/1': needs 1024 bytes, 1024 of 1500"):
        Greedy().run(start)


def test_a_constant_counts_once_per_device() -> None:
    graph = arrows("p->a->b; k->a; k->b")
    fits = Machine((PlacementDevice("GPU", memory=48), CPU))
    assert greedy(graph, fits) == {"a": "GPU", "b": "GPU"}
    assert greedy(graph, Machine((PlacementDevice("GPU", memory=47), CPU))) == {"a": "GPU", "b": "CPU"}


def test_a_later_smaller_node_may_still_fit_a_nearly_full_device() -> None:
    values = {**tensors(["x", "a", "c"], (4,)), "b": Value("b", "float32", (1000,))}
    nodes = tuple(Node(n, "Op", ("x",), (n,)) for n in "abc")
    graph = Graph("g", nodes, values, ("x",), ("a", "b", "c"))
    assert greedy(graph, Machine((PlacementDevice("GPU", memory=64), CPU))) == {"a": "GPU", "b": "CPU", "c": "GPU"}


def shape_graph(dtype: str = "int64", length: int = 4) -> Graph:
    """x -> Reshape(x, Concat(Gather(s), k)) with a small integer input s."""
    ints = tensors(["s", "k", "g", "c"], (length,), dtype)
    values = {**tensors(["x", "y"], (4,)), **ints}
    nodes = (
        Node("gather", "Gather", ("s", "k"), ("g",)),
        Node("concat", "Concat", ("g", "k"), ("c",)),
        Node("reshape", "Reshape", ("x", "c"), ("y",)),
    )
    return Graph("shapes", nodes, values, ("x", "s"), ("y",), frozenset(["k"]))


def test_small_integer_nodes_that_compute_shapes_stay_on_the_cpu() -> None:
    assert greedy(shape_graph(), Machine((GPU, CPU))) == {"gather": "CPU", "concat": "CPU", "reshape": "GPU"}


@pytest.mark.parametrize(
    "machine",
    [Machine((GPU,)), Machine((GPU, ORT)), Machine((GPU, CPU), {"CPU": {"gather": "no", "concat": "no"}})],
    ids=["no CPU", "ORT is no CPU", "refused"],
)
def test_shape_nodes_go_with_the_rest_if_no_cpu_takes_them(machine: Machine) -> None:
    assert set(greedy(shape_graph(), machine).values()) == {"GPU"}


@pytest.mark.parametrize("graph", [shape_graph("float32"), shape_graph("int64", 65), arrows("p->add->reshape")])
def test_floats_large_tensors_and_data_inputs_are_no_shapes(graph: Graph) -> None:
    assert shape_nodes(graph) == frozenset()


def test_an_integer_node_that_also_feeds_data_is_no_shape_node() -> None:
    graph = shape_graph()
    nodes = (*graph.nodes, Node("add", "Add", ("g", "k"), ("z",)))
    values = {**graph.values, "z": Value("z", "int64", (4,))}
    both = Graph("g", nodes, values, graph.inputs, ("y", "z"), graph.constants)
    assert shape_nodes(both) == {"concat"}


def test_the_data_input_of_a_reshape_is_no_shape() -> None:
    values = tensors(["s", "a", "c", "y"], (4,), "int64")
    nodes = (Node("neg", "Neg", ("s",), ("a",)), Node("reshape", "Reshape", ("a", "c"), ("y",)))
    assert shape_nodes(Graph("g", nodes, values, ("s",), ("y",), frozenset(["c"]))) == frozenset()


def test_an_empty_graph_has_an_empty_plan() -> None:
    graph = Graph("g", (), tensors(["x"]), ("x",), ("x",))
    assert Greedy().run(Plan.initial(graph, Machine((CPU,)))).partitions == ()


@given(plans())
def test_greedy_places_every_node_on_the_first_device_that_may_run_it(plan: Plan) -> None:
    result = Greedy().run(plan)
    assert not overfull(plan.graph, plan.machine, result.device_of)
    ranked = sorted(plan.machine.devices, key=lambda d: d.last_resort)
    for node in plan.graph.nodes:
        able = [d.name for d in ranked if plan.machine.refusal(d.name, node.name) is None]
        assert result.device_of[node.name] == plan.pins.get(node.name, able[0])


def test_pins_that_need_a_missing_link_are_an_error_of_the_pins() -> None:
    machine = Machine((GPU, CPU), links={("GPU", "CPU"): None})
    start = Plan.initial(chain_graph(2), machine)
    with pytest.raises(PinnedDeviceError, match="nothing can be sent to it from GPU") as caught:
        Greedy().run(start.with_partitions(start.partitions, {"n0": "GPU", "n1": "CPU"}))
    assert caught.value.code == "HC202" and "linked" in (caught.value.hint or "")
