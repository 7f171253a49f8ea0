"""Of tests with several cases, the usual suite runs each case on one instruction set; with `slow` all run on all."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.compiler.lower.cpu.generate.generated import runnable


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what another instruction set runs as slow: cases take turns, so that a test meets every set."""
    cases: dict[tuple[Path, str], dict[str, list[pytest.Function]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if not isinstance(item, pytest.Function) or not item.path.is_relative_to(Path(__file__).parent):
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if "cpu" in parameters and not item.get_closest_marker("slow"):
            rest = "-".join(f"{name}={value}" for name, value in sorted(parameters.items()) if name != "cpu")
            cases[item.path, item.originalname][rest].append(item)
    sets = runnable()
    for of_a_test in cases.values():
        if len(of_a_test) < 2:
            continue
        for turn, case in enumerate(of_a_test.values()):
            for item in case:
                if item.callspec.params["cpu"] != sets[turn % len(sets)]:
                    item.add_marker("slow")
