"""The page in the browser of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.measured import Measured
from heterocc.passes.explain.other import OtherReport
from heterocc.passes.explain.report import report_html
from tests.browser import open_report


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a report in a tab; no script may fail, and nothing be loaded."""
    pages = []

    def open_(
        found: Explanation,
        measured: Measured | None = None,
        name: str = "page",
        other: OtherReport | None = None,
        **options: Any,
    ) -> Any:
        path = tmp_path / f"{name}.html"
        path.write_text(report_html(found, measured, other), encoding="utf-8")
        pages.append(open_report(browser, path, **options))
        return pages[-1]

    yield open_
    for page in pages:
        wrong = page.wrong
        page.close()
        assert wrong == []
