"""The pytest plug-in of `search.py`: hypothesis profiles, and a line of JSON for each finished test."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

EXAMPLES = 1000
"""Examples of a test in a round, where it does not say itself how many."""

FOLDER = Path(os.environ["HETEROCC_SEARCH"])
"""The path of `report.jsonl`."""

_COUNTS = re.compile(r"(\d+) passing(?: examples)?, (\d+) failing")

settings.register_profile(
    "search",
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search-shrink", settings.get_profile("search"), phases=[Phase.explicit, Phase.generate, Phase.shrink]
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write what became of a test, and how many examples it saw."""
    report = yield
    statistics = str(getattr(item, "hypothesis_statistics", ""))
    if report.failed or report.when == "call":
        crash = getattr(report.longrepr, "reprcrash", None)
        line = {
            "test": item.nodeid,
            "place": "" if crash is None else f"{crash.path}:{crash.lineno}",
            "failure": report.longreprtext if report.failed else "",
            "message": f"{call.excinfo.typename}: {call.excinfo.value}" if report.failed and call.excinfo else "",
            "examples": sum(int(a) + int(b) for a, b in _COUNTS.findall(statistics)) if report.when == "call" else 0,
        }
        with (FOLDER / "report.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return report
