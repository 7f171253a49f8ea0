"""manual: rules, metadata and modes."""

from __future__ import annotations

import dataclasses

import pytest

from heterocc.artifacts.errors import AffinityCoverError, AffinityPatternError, HeteroccError, PinnedDeviceError
from heterocc.passes.affinity import Affinity, AffinityMode, Rule, RuleKind
from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node
from heterocc.passes.greedy import Greedy
from heterocc.passes.manual import Manual
from heterocc.passes.merge import Merge
from heterocc.passes.plan import Plan
from tests.passes.graphs import chain_graph, tensors

MACHINE = Machine(
    (PlacementDevice("GPU", "opencl"), PlacementDevice("CPU"), PlacementDevice("ORT", "ort", last_resort=True))
)


def network(machine_affinity: dict[str, str] | None = None) -> Graph:
    """conv -> relu -> conv -> softmax, named as exporters do."""
    rows = [("Conv", "/enc/0/Conv"), ("Relu", "/enc/0/Relu"), ("Conv", "/dec/1/Conv"), ("Softmax", "/dec/Softmax")]
    asked = machine_affinity or {}
    nodes = tuple(
        Node(f"node_{i}", op, (f"v{i}",), (f"v{i + 1}",), (name,), asked.get(name)) for i, (op, name) in enumerate(rows)
    )
    return Graph("net", nodes, tensors([f"v{i}" for i in range(5)]), ("v0",), ("v4",))


def manual(affinity: Affinity, graph: Graph | None = None, machine: Machine = MACHINE) -> str:
    """First letters of the devices of all nodes after greedy and manual."""
    plan = Manual().run(Greedy().run(Plan.initial(graph or network(), machine, affinity)))
    return "".join(plan.device_of[n.name][0] for n in plan.graph.nodes)


def rules(*entries: tuple[RuleKind, str, str], mode: AffinityMode = "corrected") -> Affinity:
    return Affinity(mode, tuple(Rule(*e) for e in entries))


@pytest.mark.parametrize(
    ("kind", "pattern", "expected"),
    [
        ("name", "/enc/0/Relu", "GCGG"),
        ("name", "node_1", "GCGG"),
        ("glob", "/dec/*", "GGCC"),
        ("glob", "node_[02]", "CGCG"),
        ("op", "Conv", "CGCG"),
        ("range", "/enc/0/Relu../dec/1/Conv", "GCCG"),
        ("range", "node_2../dec/Softmax", "GGCC"),
        ("range", "node_1..node_1", "GCGG"),
    ],
)
def test_each_kind_of_rule_moves_its_nodes(kind: RuleKind, pattern: str, expected: str) -> None:
    assert manual(rules((kind, pattern, "CPU"))) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("/enc/0/Relu", "GCGG"), ("op:Conv", "CGCG"), ("node_1..node_2", "GCCG"), ("/dec/*", "GGCC")],
)
def test_a_mapping_takes_every_kind_of_pattern(pattern: str, expected: str) -> None:
    assert manual(Affinity.from_mapping({pattern: "CPU"})) == expected


def test_a_mapping_reads_a_node_name_as_such_even_if_it_looks_like_a_pattern() -> None:
    graph = chain_graph(3)
    odd = dataclasses.replace(graph.nodes[1], original=("n*",))
    graph = dataclasses.replace(graph, nodes=(graph.nodes[0], odd, graph.nodes[2]))
    assert manual(Affinity.from_mapping({"n*": "CPU"}), graph) == "GCG"


def test_stronger_kinds_win_whatever_their_place() -> None:
    strong_first = rules(
        ("name", "node_0", "GPU"), ("range", "node_0..node_1", "ORT"), ("glob", "node_*", "CPU"), ("op", "Conv", "GPU")
    )
    assert manual(strong_first) == "GOCC"
    assert manual(Affinity("corrected", strong_first.rules[::-1])) == "GOCC"


def test_of_two_rules_of_one_kind_the_later_wins() -> None:
    assert manual(rules(("glob", "node_*", "CPU"), ("glob", "*enc*", "ORT"))) == "OOCC"
    assert manual(rules(("glob", "*enc*", "ORT"), ("glob", "node_*", "CPU"))) == "CCCC"


def test_metadata_places_nodes_and_any_rule_beats_it() -> None:
    graph = network({"/enc/0/Conv": "CPU", "/dec/1/Conv": "CPU"})
    assert manual(Affinity(), graph) == "CGCG"
    assert manual(rules(("op", "Conv", "GPU")), graph) == "GGGG"
    assert manual(rules(("name", "node_0", "GPU")), graph) == "GGCG"


def test_automatic_mode_ignores_metadata() -> None:
    assert manual(Affinity("automatic"), network({"/enc/0/Conv": "CPU"})) == "GGGG"


def test_manual_mode_wants_every_node_covered() -> None:
    assert manual(rules(("glob", "*", "CPU"), mode="manual")) == "CCCC"
    with pytest.raises(AffinityCoverError, match="assigns no device to Relu '/enc/0/Relu' and 1 more"):
        manual(rules(("op", "Conv", "CPU"), mode="manual"))


def test_manual_mode_counts_metadata_as_cover() -> None:
    graph = network({"/enc/0/Relu": "CPU", "/dec/Softmax": "CPU"})
    assert manual(rules(("op", "Conv", "GPU"), mode="manual"), graph) == "GCGC"


def test_device_labels_are_read_in_any_case() -> None:
    assert manual(rules(("op", "Conv", "cpu"))) == "CGCG"


def test_a_device_of_last_resort_can_be_asked_for() -> None:
    assert manual(rules(("op", "Softmax", "ORT"))) == "GGGO"


def failure(affinity: Affinity, graph: Graph | None = None, machine: Machine = MACHINE) -> HeteroccError:
    with pytest.raises(HeteroccError) as caught:
        manual(affinity, graph, machine)
    return caught.value


@pytest.mark.parametrize(
    ("kind", "pattern", "hint"),
    [
        ("name", "/enc/0/Rel", "'/enc/0/Relu'"),
        ("any", "/dec/1/Comv", "'/dec/1/Conv'"),
        ("glob", "/encoder/*", "names look like '/enc/0/Conv'"),
        ("op", "Softmx", "operator types of the model: Softmax"),
        ("any", "op:Gelu", "operator types of the model: Relu, Conv, Softmax"),
        ("range", "/enc/0/Relu../dec/Sofmax", "nearest names: '/dec/Softmax'"),
        ("range", "node_1", "FIRST..LAST"),
    ],
)
def test_a_pattern_that_matches_nothing_names_the_nearest(kind: RuleKind, pattern: str, hint: str) -> None:
    error = failure(Affinity("corrected", (Rule(kind, pattern, "CPU", "place.toml:7"),)))
    assert isinstance(error, AffinityPatternError)
    assert f"'{pattern}' matches no" in error.message
    assert error.where == "place.toml:7"
    assert error.hint is not None
    assert hint in error.hint


def test_a_range_that_runs_backwards_is_an_error() -> None:
    error = failure(rules(("range", "node_3..node_1", "CPU")))
    assert isinstance(error, AffinityPatternError)
    assert "runs backwards" in error.message
    assert error.hint == "write 'node_1..node_3'"


def test_a_pin_to_a_device_that_cannot_run_the_node_says_why_and_who_can() -> None:
    machine = Machine(MACHINE.devices, {"GPU": {"node_3": "softmax over axis 0"}})
    error = failure(Affinity("corrected", (Rule("op", "Softmax", "GPU", "place.toml:3"),)), machine=machine)
    assert str(error) == (
        "error[HC202]: GPU cannot run Softmax '/dec/Softmax': softmax over axis 0\n"
        "  --> place.toml:3: 'Softmax' = 'GPU'\n"
        "  hint: CPU, ORT can run it"
    )


def test_a_pin_to_a_device_that_is_not_listed_names_the_listed_ones() -> None:
    error = failure(rules(("op", "Softmax", "NPU")))
    assert isinstance(error, PinnedDeviceError)
    assert "pinned to 'NPU', which is not listed" in error.message
    assert error.hint == "listed devices: GPU, CPU, ORT; change the affinity, or list NPU too"


def test_a_bad_device_in_the_metadata_of_the_model_says_where_it_stands() -> None:
    error = failure(Affinity(), network({"/enc/0/Conv": "NPU"}))
    assert error.where == "the model's metadata 'affinity': '/enc/0/Conv' = 'NPU'"


def test_pins_that_overfill_a_device_push_unpinned_nodes_off_it() -> None:
    machine = Machine((PlacementDevice("GPU", memory=32), PlacementDevice("CPU")))
    assert manual(Affinity(), machine=machine) == "GGCC"
    assert manual(rules(("name", "node_3", "GPU")), machine=machine) == "GCCG"


def test_pins_that_alone_overfill_a_device_are_an_error() -> None:
    machine = Machine((PlacementDevice("GPU", memory=32), PlacementDevice("CPU")))
    error = failure(rules(("glob", "*", "GPU")), machine=machine)
    assert isinstance(error, PinnedDeviceError)
    assert "GPU lacks memory for Conv '/dec/1/Conv'" in error.message


def test_pins_hold_through_merge() -> None:
    start = Plan.initial(network(), MACHINE, rules(("name", "node_1", "CPU")))
    plan = Merge().run(Manual().run(Greedy().run(start)))
    assert dict(plan.pins) == {"node_1": "CPU"}
    assert [p.device for p in plan.partitions] == ["GPU", "CPU", "GPU"]


def test_manual_alone_leaves_the_rest_unplaced() -> None:
    plan = Manual().run(Plan.initial(network(), MACHINE, rules(("name", "node_1", "CPU"))))
    assert [plan.device_of[n.name] for n in plan.graph.nodes] == ["?", "CPU", "?", "?"]


def test_a_name_of_two_nodes_means_the_models_in_a_file_and_the_graphs_in_a_mapping() -> None:
    """An importer may call node 'a/b' a_b and the model's own 'a_b' something else."""
    graph = chain_graph(2)
    nodes = (
        dataclasses.replace(graph.nodes[0], name="a_b", original=("a/b",)),
        dataclasses.replace(graph.nodes[1], name="a_b_1", original=("a_b",)),
    )
    graph = dataclasses.replace(graph, nodes=nodes)
    assert manual(rules(("name", "a_b", "CPU")), graph) == "GC"
    assert manual(Affinity.from_mapping({"a_b": "CPU"}), graph) == "CG"
