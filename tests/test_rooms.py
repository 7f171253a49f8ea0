"""Rooms, as folders of modules are called here, stay small enough to be read as a list."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("artifacts", "benchmarks", "compiler", "examples", "passes", "runtime", "scripts")


def test_no_folder_has_more_than_twenty_modules() -> None:
    modules = Counter(path.parent.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert modules and not [f"{folder}: {count}" for folder, count in sorted(modules.items()) if count > 20]


def test_no_module_of_the_lowering_has_more_than_four_hundred_lines() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / "compiler" / "lower").rglob("*.py")}
    assert lines and not [f"{path.relative_to(ROOT)}: {count}" for path, count in sorted(lines.items()) if count > 400]
