"""Plans as text, in one line, as JSON and as graphs."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given

from heterocc.passes.affinity import Affinity, Rule
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.merge import Merge
from heterocc.passes.plan import Partition, Plan
from heterocc.passes.show.dot import affinity_dot, dot_files, subgraphs_dot
from heterocc.passes.show.printer import (
    human_bytes,
    human_seconds,
    partition_table,
    print_plan,
    show_value,
    summary,
)
from heterocc.passes.show.report import plan_report
from heterocc.passes.show.serialize import plan_from_json, plan_to_json, read_reproducer, write_reproducer
from tests.golden_files import Golden
from tests.passes.graphs import LETTERS, arrows, chain, chain_graph, placed, plans, tensors
from tests.passes.plan_text import parse_plan

GOLDEN = Path(__file__).parents[2] / "golden" / "plans"


@pytest.mark.parametrize("devices", ["c", "cc", "cgc", "ccggc", "gcgcg", "vgcvo"])
def test_merge_matches_golden(devices: str, golden: Golden) -> None:
    golden.check(GOLDEN / f"merge-{devices}.plan", print_plan(Merge().run(chain(devices))))


def everything() -> Plan:
    """A plan with constants, an unused input, two outputs, pins, an odd name and values of unknown size."""
    graph = arrows("p1->conv->relu->loop; k->conv; relu->add; p2->add; p3 unused")
    odd = {"loop": ('dec/"loop"\n', "dec/loop_inner")}
    nodes = tuple(dataclasses.replace(n, original=odd.get(n.name, n.original)) for n in graph.nodes)
    values = {**graph.values, "relu": Value("relu", "float16", (1, None)), "loop": Value("loop", "seq(string)", None)}
    graph = Graph("every thing", nodes, values, graph.inputs, graph.outputs, graph.constants)
    machine = Machine((LETTERS["g"], LETTERS["c"], LETTERS["o"]))
    start = placed(graph, {"conv": "GPU", "relu": "GPU", "add": "CPU", "loop": "ORT"}, machine)
    return Merge().run(start.with_partitions(start.partitions, {"conv": "GPU"}))


def test_a_plan_of_all_there_is_matches_golden(golden: Golden) -> None:
    golden.check(GOLDEN / "everything.plan", print_plan(everything()))


@pytest.mark.parametrize("name", [f"hetero_{kind}_every_thing-0de7aedbde13.dot" for kind in ("affinity", "subgraphs")])
def test_graphs_match_golden(name: str, golden: Golden) -> None:
    golden.check(GOLDEN / name, dot_files(everything())[name])


def test_the_table_of_partitions_shows_devices_nodes_transfers_and_operators() -> None:
    lines = [re.split(r"  +", line.strip()) for line in partition_table(chain("cgc")).splitlines()]
    assert lines == [
        ["device", "nodes", "transfers", "operators"],
        ["p0", "CPU", "1", "0", "Relu 1"],
        ["p1", "GPU", "1", "1 from CPU, 16 B", "Relu 1"],
        ["p2", "CPU", "1", "1 from GPU, 16 B", "Relu 1"],
    ]


@given(plans())
def test_the_table_counts_every_transfer_once(plan: Plan) -> None:
    columns = [re.split(r"  +", line.strip())[3] for line in partition_table(plan).splitlines()[1:]]
    assert sum(int(c.split()[0]) for c in columns) == len(plan.transfers)


@given(plans())
def test_a_printed_plan_reads_back(plan: Plan) -> None:
    assert parse_plan(print_plan(plan), plan.graph, plan.machine, plan.affinity) == plan


def test_a_plan_with_odd_names_reads_back() -> None:
    plan = everything()
    assert parse_plan(print_plan(plan), plan.graph, plan.machine) == plan


@pytest.mark.parametrize(
    "odd", ["a  # pinned", "a\np1 CPU: 1 node", "\u2028\x85\x0b", "\u202ex", '"', "é模🙂", "\ud800"]
)
def test_a_plan_whose_names_would_break_lines_reads_back(odd: str) -> None:
    graph = chain_graph(2)
    nodes = tuple(dataclasses.replace(n, original=(odd,), op_type=odd) for n in graph.nodes)
    machine, parts = Machine((PlacementDevice("CPU"),)), (Partition("CPU", ("n0", "n1")),)
    plan = Plan(dataclasses.replace(graph, name=odd, nodes=nodes), machine, parts, {})
    text = print_plan(plan)
    assert parse_plan(text, plan.graph, plan.machine) == plan
    assert len(text.splitlines()) == len(print_plan(Plan(graph, machine, parts, {})).splitlines())
    for shown in (text, *dot_files(plan).values()):
        assert all(c.isprintable() or c == "\n" for c in shown)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p1 CPU: 1 node\n    n0: Relu(x) -> v0\n", "p1 follows 0 partitions"),
        ("    n0: Relu(x) -> v0\n", "before the first partition"),
        ("p0 CPU: 1 node\n    n9: Relu(x) -> v0\n", "unknown node 'n9'"),
        ("", "'n0' is in no partition"),
    ],
)
def test_text_that_is_no_plan_of_the_graph_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_plan(text, chain_graph(1), Machine((PlacementDevice("CPU"),)))


@given(plans())
def test_a_plan_survives_json(plan: Plan) -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_json_holds_affinity_links_and_unknown_shapes() -> None:
    start = everything()
    machine = dataclasses.replace(start.machine, links={("GPU", "CPU"): Link(1.0, 2.0)})
    affinity = Affinity("corrected", (Rule("glob", "*", "GPU", "a.toml:1"),))
    plan = dataclasses.replace(start, machine=machine, affinity=affinity)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_json_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="plan format 2 is not 1"):
        plan_from_json({**plan_to_json(chain("c")), "format": 2})


def test_a_reproducer_shows_the_plan_and_holds_the_data() -> None:
    plan = everything()
    text = write_reproducer(plan, "merge{max-nodes=3}")
    assert print_plan(plan) in text
    assert read_reproducer(text) == (plan, "merge{max-nodes=3}")


def test_the_summary_is_one_line_of_all_that_counts() -> None:
    assert summary(Merge().run(chain("ccggc"))) == "5 nodes: GPU 2 (1 partition), CPU 3 (2); 2 transfers, 32 B"
    assert summary(chain("c")) == "1 node: CPU 1 (1 partition); 0 transfers"
    assert summary(everything()) == (
        "4 nodes: GPU 2 (1 partition), CPU 1 (1), ORT 1 (1); 2 transfers, 0 B and 2 of unknown size"
    )


def test_the_summary_counts_what_is_not_placed() -> None:
    plan = Plan.initial(chain_graph(2), Machine((PlacementDevice("CPU"),)))
    assert summary(plan) == "2 nodes: not placed 2 (1 partition); 0 transfers"


def test_the_summary_of_an_empty_graph_says_so() -> None:
    graph = Graph("g", (), tensors(["x"]), ("x",), ("x",))
    plan = Plan.initial(graph, Machine((PlacementDevice("CPU"),)))
    assert summary(plan) == "0 nodes: nothing to run; 0 transfers"


def with_work(word: str, refusals: dict[str, dict[str, str]] | None = None) -> Plan:
    start = chain(word)
    work = {n.name: 1e9 for n in start.graph.nodes}
    return Plan(start.graph, Machine(start.machine.devices, refusals or {}, work), start.partitions)


def test_the_summary_estimates_time_if_all_work_is_known() -> None:
    # GPU: 1e9 / 1e12 + 1e-5 = 1.01 ms; CPU: 1e9 / 1e11 + 1e-6 = 10.001 ms; one transfer of 16 B: 10 us.
    assert summary(with_work("gc")).endswith("; est. 11.0 ms (GPU alone: 2.0 ms)")
    assert summary(with_work("g")).endswith("; est. 1.0 ms")
    assert summary(with_work("gc", {"GPU": {"n1": "no"}})).endswith("(GPU cannot run 1: Relu)")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.0 MB"),
        (1_200_000, "1.2 MB"),
        (3 * 10**9, "3.0 GB"),
        (5 * 10**12, "5.0 TB"),
    ],
)
def test_bytes_read_in_units_of_a_thousand(nbytes: int, text: str) -> None:
    assert human_bytes(nbytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(1.23e-5, "12.3 us"), (4.1e-3, "4.1 ms"), (0.99996, "1.0 s")])
def test_seconds_read_in_their_unit(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Value("x", "float32", (1, 3)), "x: float32[1,3]"),
        (Value("x", "int64", ()), "x: int64[]"),
        (Value("x", "int64", (None, 2)), "x: int64[?,2]"),
        (Value("x", "string", None), "x: string[...]"),
    ],
)
def test_values_show_dtype_and_shape(value: Value, text: str) -> None:
    assert show_value(value) == text


def test_the_report_names_original_nodes_and_bytes() -> None:
    report = plan_report(Merge().run(chain("cgc")))
    json.dumps(report)
    assert report["partitions"][1] == {  # type: ignore[index]
        "name": "p1",
        "device": "GPU",
        "nodes": ["n1"],
        "original_nodes": ["chain/1"],
        "inputs": ["v0"],
        "outputs": ["v1"],
    }
    assert report["transfer_bytes"] == 32
    assert report["estimated_seconds"] is None


def test_dot_quotes_whatever_a_name_holds() -> None:
    node = Node("a", "Op", ("x",), ("y",), ('weird "name"\\ {<|>}\nline',))
    graph = Graph("m", (node,), tensors(["x", "y"]), ("x",), ("y",))
    plan = Plan.initial(graph, Machine((PlacementDevice("CPU"),)))
    for text in (affinity_dot(plan), subgraphs_dot(plan)):
        assert r'[label="weird \"name\"\\ {<|>}\nline\nOp\n?"' in text
        assert len(re.findall(r'(?<!\\)"', text)) % 2 == 0


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("resnet50", "resnet50"),
        ("a/b", "a_b-c14cddc033f6"),
        ("../x", "x-d6b96a97d147"),
        ("..", "_-5ec1f7e700f3"),
        ("", "_-e3b0c44298fc"),
    ],
)
def test_dot_file_names_never_leave_their_folder(model: str, file: str) -> None:
    plan = Plan.initial(chain_graph(1, name=model), Machine((PlacementDevice("CPU"),)))
    assert [*dot_files(plan)] == [f"hetero_affinity_{file}.dot", f"hetero_subgraphs_{file}.dot"]


def test_dot_marks_what_crosses_devices() -> None:
    text = affinity_dot(chain("gc"))
    assert text.count("color=red") == 1
    assert '"node n0" -> "node n1" [label="v0", penwidth=3, color=red];' in text
