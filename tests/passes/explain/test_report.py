"""The HTML report: its data, and that it needs nothing else. `test_page.py` looks at it in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterocc.artifacts.errors import FileMissingError, InputError, OutputFileError, UsageError
from heterocc.passes.base import policy_pipeline
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.explain import report
from heterocc.passes.explain.details import Details
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.measured import Measured, Moment, Timed
from heterocc.passes.explain.other import read_other
from heterocc.passes.explain.page_data import report_data
from heterocc.passes.explain.record import read_record, write_record
from heterocc.passes.explain.report import report_html
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.plan import Plan
from tests.passes.explain import reports
from tests.passes.graphs import chain_graph, tensors

HOSTILE = "</script><script>document.title='broken'</script><!--"


def explained(graph: Graph, refused: str = "n2") -> Explanation:
    times = {d: {n.name: 1e-6 if d == "GPU" else 1e-4 for n in graph.nodes} for d in ("GPU", "CPU")}
    devices = (PlacementDevice("GPU", "opencl"), PlacementDevice("CPU"))
    machine = Machine(devices, {"GPU": {refused: f"no {HOSTILE}"}}, default_link=Link(1e-5, 1e10), seconds=times)
    plan = Plan.initial(graph, machine)
    for pass_ in policy_pipeline("greedy"):
        plan = pass_.run(plan)
    return Explanation(plan, policy_pipeline("greedy"), "greedy")


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_loads_nothing_and_survives_hostile_names() -> None:
    nodes = tuple(Node(f"n{i}", "Relu", (f"v{i}",), (f"v{i + 1}",), (HOSTILE,)) for i in range(4))
    page = report_html(explained(Graph(HOSTILE, nodes, tensors([f"v{i}" for i in range(5)]), ("v0",), ("v4",))))
    assert "default-src 'none'" in page
    assert "://" not in page
    assert not re.search(r"\b(src|href)=|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", page)
    assert page.count("</script>") == 3 and data_of(page)["model"] == HOSTILE


def test_a_name_that_looks_like_a_mark_of_the_page_stays_a_name() -> None:
    page = report_html(explained(replace(chain_graph(3), name="@DATA@ @STYLE@")))
    assert "<title>@DATA@ @STYLE@: placement</title>" in page and data_of(page)["model"] == "@DATA@ @STYLE@"


def test_the_data_has_what_a_node_reads_writes_costs_and_is_bound_by() -> None:
    found = reports.explained(reports.network(15))
    data = data_of(report_html(found))
    assert data == json.loads(json.dumps(report_data(found)))
    nodes, values = data["nodes"], data["values"]
    product, softmax = nodes[0], nodes[5]
    assert [values[v] for v in product["in"]] == [
        ["x", "float32", [64, 64], 16384, 0],
        ["n0_w", "float32", [64, 64], 16384, 1, "-0.5", "0.25"],
    ]
    assert (product["flops"], product["bytes"], product["bound"]) == (2 * 64**3, 3 * 16384, "compute")
    assert (softmax["device"], softmax["flops"], softmax["bound"]) == ("CPU", 0, "memory")
    assert data["attributes"][softmax["attributes"]] == [["axis", "-1"]] and not data["attributes"][0]
    assert [values[v][0] for v in data["inputs"]] == ["x"] and [values[v][0] for v in data["outputs"]] == ["n14_out"]
    assert data["measured"] is None and [p["device"] for p in data["partitions"]] == ["GPU", "CPU", "GPU"]
    assert all(n["us"] > 0 and n["measured"] is None for n in nodes)


def test_a_size_that_only_a_run_knows_leaves_bytes_and_bound_open() -> None:
    nodes = (Node("n0", "Relu", ("x",), ("y",), ("relu",)),)
    values = {name: Value(name, "float32", ("n", 4)) for name in ("x", "y")}
    (node,) = report_data(explained(Graph("g", nodes, values, ("x",), ("y",))))["nodes"]
    assert node["bytes"] is None and node["bound"] is None


def test_the_time_of_a_kernel_is_divided_among_its_nodes_by_their_estimates() -> None:
    found = explained(chain_graph(4), "n2")  # n2 is on the CPU, and a hundred times as slow
    steps = (
        Timed("partition", "p0", "GPU", "p0", 3e-3),
        Timed("kernel", "chain/1 + chain/2", "GPU", "p0", 2.02e-3, ("chain/1", "chain/2"), "relu_and_1", 2.0, "device"),
        Timed("kernel", "reshape", "GPU", "p0", 1e-6, (), "reshape"),
        Timed("transfer", "v1", "host", "", 1e-3),
    )
    run = Measured(steps, 7, (Moment(0, 0.0, 3e-3, "GPU, thread 1"), Moment(1, 1e-3, 2e-3, "GPU, its own clock")))
    data = report_data(found, run)
    assert [n["measured"] for n in data["nodes"]] == [None, 20.0, 2000.0, None]
    assert [n["kernels"] for n in data["nodes"]] == [[], [0], [0], []]
    measured = data["measured"]
    assert (measured["runs"], measured["us"]) == (7, 4000.0)
    assert measured["kernels"][0] == {
        "name": "chain/1 + chain/2", "symbol": "relu_and_1", "device": "GPU", "part": "p0", "us": 2020.0,
        "calls": 2.0, "clock": "device", "nodes": [1, 2],
    }  # fmt: skip
    assert [s["name"] for s in measured["steps"]] == ["p0", "v1"] and measured["kernels"][1]["nodes"] == []
    assert measured["tracks"] == ["GPU, thread 1", "GPU, its own clock"]
    assert measured["moments"] == [[0, 0, 0, 0.0, 3000.0], [1, 0, 1, 1000.0, 1000.0]]


def test_the_record_of_a_bundle_keeps_attributes_and_ranges() -> None:
    found = reports.explained(reports.network(15))
    there = read_record(write_record(found))
    assert there.details == found.details and report_data(there)["nodes"] == report_data(found)["nodes"]
    old = json.loads(write_record(found))
    del old["details"]  # as an earlier heterocc wrote it
    assert read_record(json.dumps(old)).details == Details()
    assert report_data(there)["nodes"][0]["module"] is None
    old["details"] = {"ranges": {"w": ["one"]}}
    with pytest.raises(ValueError, match="unpack"):
        read_record(json.dumps(old))


def test_values_and_transfers_have_their_names_in_the_model() -> None:
    found = reports.explained(reports.network(15))
    sent = found.transfers[0].value
    found = replace(found, details=Details(values={sent: "/encoder/a:0", "x": "input.1"}))
    there = read_record(write_record(found))
    assert there.details == found.details
    data = report_data(there, reports.measured(there))
    names = [value[0] for value in data["values"]]
    assert names[data["inputs"][0]] == "input.1" and "/encoder/a:0" in names and sent not in names
    assert data["transfers"][0]["value"] == "/encoder/a:0"
    assert "/encoder/a:0" in [step["name"] for step in data["measured"]["steps"] if step["kind"] == "transfer"]


def test_every_file_of_the_page_is_in_it_and_is_short() -> None:
    folder = Path(report.__file__).parent / "page"
    listed = {f"{name}.js" for name in report.SCRIPTS} | {f"{name}.css" for name in report.STYLES} | {"page.html"}
    assert {p.name for p in folder.iterdir()} == listed
    assert all(len(p.read_text().splitlines()) < 320 for p in folder.iterdir())


def test_another_report_is_packed_into_the_page_as_data(tmp_path: Path) -> None:
    graph = Graph(HOSTILE, (Node("n", "Relu", ("v0",), ("v1",)),), tensors(["v0", "v1"]), ("v0",), ("v1",))
    first, both = tmp_path / "first.html", tmp_path / "both.html"
    first.write_text(report_html(explained(graph)), encoding="utf-8")
    page = report_html(explained(chain_graph(3)), other=read_other(first, both))
    assert page.count("</script>") == 3
    beside = re.search(r'id="beside">(.*?)</script>', page)
    assert beside is not None
    assert json.loads(beside[1]) == {"name": "first.html", "report": data_of(first.read_text(encoding="utf-8"))}
    # The page of two is itself a report: that on its own model.
    both.write_text(page, encoding="utf-8")
    again = read_other(both, tmp_path / "third.html")
    assert again is not None and again.data == data_of(page)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<html></html>", "it is not a report of heterocc"),
        ('<script type="application/json" id="data">{"format": </script>', "its data is damaged"),
        ('<script type="application/json" id="data">[NaN]</script>', "its data is damaged"),
        (f'<script type="application/json" id="data">{"[" * 100_000}</script>', "its data is damaged"),
        ('<script type="application/json" id="data">{"format": 1}</script>', "another version of heterocc wrote it"),
        ('<script type="application/json" id="data">[2]</script>', "another version of heterocc wrote it"),
    ],
)
def test_a_file_that_is_not_a_report_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "other.html").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_other(tmp_path / "other.html", tmp_path / "out.html")


def test_another_report_needs_a_new_one_which_does_not_overwrite_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not asked for"):
        read_other(tmp_path / "a.html", None)
    with pytest.raises(FileMissingError):
        read_other(tmp_path / "a.html", tmp_path / "b.html")
    (tmp_path / "a.html").write_text(report_html(explained(chain_graph(3))), encoding="utf-8")
    with pytest.raises(OutputFileError, match="would overwrite"):
        read_other(tmp_path / "a.html", tmp_path / "." / "a.html")
