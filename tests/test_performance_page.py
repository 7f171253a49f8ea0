"""docs/performance.md, which scripts/performance.py makes from the figures of benchmarks."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def performance() -> ModuleType:
    spec = importlib.util.spec_from_file_location("performance", ROOT / "scripts" / "performance.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_figures_say(performance: ModuleType) -> None:
    assert (ROOT / "docs" / "performance.md").read_text() == performance.page(performance.tables())


def test_every_table_names_its_machine_date_and_command(performance: ModuleType) -> None:
    for table in performance.tables():
        assert all(table[fact] for fact in ("title", "machine", "date", "command", "rows"))
        columns = table.get("columns") or ["", "", *table["runners"]]
        assert all(len(row) == len(columns) for row in table["rows"])


def test_a_title_that_counts_networks_counts_the_rows(performance: ModuleType) -> None:
    counted = [(table, re.match(r"(\d+) (?:networks|models)\b", table["title"])) for table in performance.tables()]
    wrong = [t["title"] for t, found in counted if found and int(found[1]) != len({row[0] for row in t["rows"]})]
    assert any(found for _, found in counted) and not wrong


def test_no_figure_tells_how_it_came_about(performance: ModuleType) -> None:
    """docs/log does."""
    cells = [str(cell) for table in performance.tables() for row in table["rows"] for cell in row]
    assert not [cell for cell in cells if re.search(r"\b(?:again|disturbed|before|earlier|later|changes?)\b", cell)]


def test_ratios_are_those_of_the_better_peer(performance: ModuleType) -> None:
    table: dict[str, Any] = {
        "question": "quantised", "kind": "runners", "title": "two nets", "machine": "m", "date": "d", "command": "c",
        "unit": "ms", "runners": ["heterocc", "ONNX Runtime", "OpenVINO"],
        "rows": [["a", 1, 2.0, 4.0, 3.0], ["b", 1, 1.0, 6.0, None]],
    }  # fmt: skip
    text = performance.page([table])
    assert "| a | 2, 4, 3 | 1.50 |" in text and "| b | 1, 6, - | 6.00 |" in text
    assert "| geometric mean |  | 3.00 |" in text


def test_figures_are_taken_from_the_results_of_benchmarks(performance: ModuleType, tmp_path: Path) -> None:
    target, cpu, dynamic = tmp_path / "t.json", tmp_path / "cpu.json", tmp_path / "dynamic.json"
    table = {"question": "dynamic", "kind": "runners", "title": "t", "machine": "m", "date": "d", "command": "c",
             "unit": "ms", "runners": ["heterocc", "ONNX Runtime", "OpenVINO"], "rows": []}  # fmt: skip
    performance.write(target, table)
    ms = {"heterocc": {"min": 1.2345, "median": 2.0}, "onnxruntime": {"min": 2.0, "median": 3.0}}
    cpu.write_text(json.dumps({"cases": [{"name": "net", "threads": 2, "ms": ms}, {"name": "bad", "failed": {}}]}))
    performance.take(cpu, target, "another machine")
    taken = json.loads(target.read_text())
    assert taken["rows"] == [["net", 2, 1.23, 2.0, None]] and taken["machine"] == "another machine"
    row = {"model": "net", "size": "n=3", "threads": 1, "ms": {"default": [1.0, 2.0], "onnxruntime": [3.0, 4.0]}}
    dynamic.write_text(json.dumps({"compiles": {}, "rows": [row, {"reason": "not ended in time"}]}))
    performance.take(dynamic, target, None)
    assert json.loads(target.read_text())["rows"] == [["net, n=3", 1, 1.0, 3.0, None]]
