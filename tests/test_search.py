"""`make test-search`: it runs every test with drawn examples, continues after failures, and prints examples to pin."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "scripts" / "search.py"


def search(file: Path, *options: str) -> tuple[int, str]:
    """Exit status and output of a search in one file."""
    command = [sys.executable, str(SCRIPT), "--minutes", "1", *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_search_goes_on_after_a_failure_and_prints_each_once_with_what_to_pin(tmp_path: Path) -> None:
    file = tmp_path / "test_drawn.py"
    file.write_text("""
from hypothesis import given, settings, strategies as st

@given(st.lists(st.integers(0, 100)))
def test_sums_are_small(numbers):
    assert sum(numbers) < 150, str(numbers)

@given(st.integers())
def test_numbers_are_themselves(number):
    assert number == number

def test_that_draws_nothing():
    raise ValueError
""")
    status, output = search(file, "--rounds", "2")
    assert status == 1, output
    assert "examples of 2 tests in 2 rounds; 1 failures" in output
    assert "test_drawn.py::test_sums_are_small failed 2 times, first with --hypothesis-seed=" in output
    assert "numbers=[50, 100]" in output, "made smaller"
    assert "@reproduce_failure(" in output
    assert not list(tmp_path.glob(".hypothesis/examples/*"))


@pytest.mark.slow
def test_a_search_reports_a_process_that_dies_and_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "test_drawn.py"
    file.write_text("""
import os
from hypothesis import given, strategies as st

@given(st.integers())
def test_that_dies(number):
    os.abort()
""")
    status, output = search(file, "--rounds", "1")
    assert status == 1
    assert f"{file} failed once" in output
    assert "pytest ended with status -6" in output
    file.write_text("import heterocc.nothing")
    status, output = search(file, "--rounds", "1")
    assert status == 1
    assert "No module named 'heterocc.nothing'" in output


@pytest.mark.slow
def test_a_test_that_is_cut_off_is_no_failure_and_what_failed_before_is_one(tmp_path: Path) -> None:
    file = tmp_path / "test_drawn.py"
    file.write_text("""
import time
from hypothesis import given, strategies as st

@given(st.integers())
def test_that_fails(number):
    assert False

@given(st.integers())
def test_that_takes_long(number):
    time.sleep(600)
""")
    status, output = search(file, "--minutes", "0.1")
    assert status == 1
    assert "test_that_fails" in output
    assert "test_that_takes_long" not in output
    assert "in 1 rounds; 1 failures" in output


@pytest.mark.slow
def test_a_search_without_failures_ends_well_and_one_without_tests_does_not(tmp_path: Path) -> None:
    file = tmp_path / "test_drawn.py"
    file.write_text("from hypothesis import given, strategies as st\n\n@given(st.integers())\ndef test_x(x): pass\n")
    assert search(file, "--rounds", "1")[0] == 0
    file.write_text("def test_x(): pass\n")
    assert search(file, "--rounds", "1")[0] == 2


def test_every_test_that_draws_examples_is_searched() -> None:
    """Hypothesis marks tests that `given` decorates, not those with such a function inside."""
    inside = []
    for file in (f for f in TESTS.rglob("*.py") if "@given" in f.read_text("utf-8")):
        tree = ast.parse(file.read_text("utf-8"))
        shown = set(tree.body)
        inside += [
            f"{file.name}: {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node not in shown
            if any("given" in ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list)
        ]
    assert inside == []
