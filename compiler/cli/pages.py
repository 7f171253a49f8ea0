"""Reports as HTML pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command loads only what it needs
    from heterocc.passes.explain.explanation import Explanation
    from heterocc.passes.explain.measured import Measured
    from heterocc.passes.explain.other import OtherReport


def write_page(
    bundle: Path,
    report: Path,
    found: Explanation,
    measured: Measured | None = None,
    other: OtherReport | None = None,
) -> None:
    """Write the report on a bundle. Raises OutputFileError (HC111)."""
    from heterocc.artifacts.files.reading import reading
    from heterocc.artifacts.files.writing import atomic_write
    from heterocc.passes.explain.report import report_html

    with reading({bundle: "the bundle"}):
        atomic_write(report, report_html(found, measured, other))
