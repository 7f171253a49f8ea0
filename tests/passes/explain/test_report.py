"""The HTML report: its layout and data, that it needs nothing else, and that a browser runs it."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from heterocc.passes.base import policy_pipeline
from heterocc.passes.cost import Link, Machine, PlacementDevice
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.layout import positions
from heterocc.passes.explain.report import Timed, report_data, report_html
from heterocc.passes.graph import Graph, Node
from heterocc.passes.plan import Plan
from tests.passes.graphs import arrows, chain_graph, tensors
from tests.passes.optimum.cost import random_problem

HOSTILE = "</script><script>document.title='broken'</script><!--"


def explained(graph: Graph, refused: str = "n2") -> Explanation:
    times = {d: {n.name: 1e-6 if d == "GPU" else 1e-4 for n in graph.nodes} for d in ("GPU", "CPU")}
    devices = (PlacementDevice("GPU", "opencl"), PlacementDevice("CPU"))
    machine = Machine(devices, {"GPU": {refused: f"no {HOSTILE}"}}, default_link=Link(1e-5, 1e10), seconds=times)
    plan = Plan.initial(graph, machine)
    for pass_ in policy_pipeline("greedy"):
        plan = pass_.run(plan)
    return Explanation(plan, policy_pipeline("greedy"), "greedy")


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def test_every_edge_goes_down_and_nodes_of_a_layer_are_apart() -> None:
    for seed in range(10):
        graph, _ = random_problem(seed, 60, 2)
        places = positions(graph)
        for node, reads in enumerate(graph.sources):
            assert all(places[source][1] < places[node][1] for source in reads)
        for layer in {layer for _, layer in places}:
            columns = sorted(column for column, other in places if other == layer)
            assert all(b - a > 0.999 for a, b in itertools.pairwise(columns))
    assert positions(graph) == positions(graph)


def test_a_chain_is_a_straight_line_and_a_diamond_is_symmetric() -> None:
    assert positions(chain_graph(3)) == [(0.0, 0), (0.0, 1), (0.0, 2)]
    top, left, right, bottom = positions(arrows("p->a; a->b->d; a->c->d"))
    assert left[1] == right[1] == 1 and top[0] == bottom[0] == (left[0] + right[0]) / 2


def test_the_page_loads_nothing_and_survives_hostile_names() -> None:
    nodes = tuple(Node(f"n{i}", "Relu", (f"v{i}",), (f"v{i + 1}",), (HOSTILE,)) for i in range(4))
    page = report_html(explained(Graph(HOSTILE, nodes, tensors([f"v{i}" for i in range(5)]), ("v0",), ("v4",))))
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\"' ]*", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"\b(src|href)=|@import|url\(|fetch\(|XMLHttpRequest", page)
    assert page.count("</script>") == 2 and data_of(page)["model"] == HOSTILE


def test_the_data_has_nodes_edges_and_a_timeline_of_estimates_or_measurements() -> None:
    found = explained(chain_graph(5))
    data = data_of(report_html(found))
    assert data == json.loads(json.dumps(report_data(found)))
    nodes, timeline = data["nodes"], data["timeline"]
    assert isinstance(nodes, list) and isinstance(timeline, list)
    assert [n["device"] for n in nodes] == ["GPU", "GPU", "CPU", "GPU", "GPU"] and len(data["edges"]) == 4  # type: ignore[arg-type]
    assert [s["name"] for s in sorted(timeline, key=lambda s: s["start"])] == ["p0", "v1", "p1", "v2", "p2"]
    timed = (
        Timed("partition", "p0", "GPU", "p0", 2e-3),
        Timed("kernel", "relu", "GPU", "p0", 1e-3, ("chain/0", "chain/1")),
        Timed("transfer", "v1", "host", "", 1e-3),
    )
    measured = report_data(found, timed)
    assert measured["measured"] and [(s["name"], s["start"], s["us"]) for s in measured["timeline"]] == [
        ("p0", 0.0, 2000.0),
        ("v1", 2000.0, 1000.0),
    ]
    assert measured["kernels"][0]["nodes"] == ["chain/0", "chain/1"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_a_browser_draws_the_graph_searches_and_sorts(tmp_path: Path) -> None:
    page = report_html(explained(chain_graph(40), "n20"))
    actions = """
      $("search").value = "cpu"; search(); document.querySelectorAll("#nodes th")[4].click();
      document.body.dataset.first = document.querySelector("#nodes td").textContent;
      document.body.dataset.ready"""
    (tmp_path / "page.html").write_text(page.replace("document.body.dataset.ready", actions))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'home'}"]
    done = subprocess.run(
        [*command, "--dump-dom", f"file://{tmp_path / 'page.html'}"], capture_output=True, text=True, timeout=60
    )
    assert 'data-ready="40"' in done.stdout and 'data-first="chain/20"' in done.stdout
    assert '<span id="hits">1 of 40</span>' in done.stdout and 'data-drawn="0"' not in done.stdout
    assert "<h3>Relu 'chain/20'</h3>" in done.stdout and done.stdout.count("<rect") == 5
