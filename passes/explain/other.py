"""A report that was written before, for comparison: its data is read out of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterocc.artifacts.errors import FileMissingError, InputError, UsageError
from heterocc.artifacts.files.opening import open_file
from heterocc.artifacts.files.reading import reading, refuse_input
from heterocc.artifacts.files.texts import parse_json
from heterocc.artifacts.foreign import pass_foreign
from heterocc.passes.explain.page_data import FORMAT

MOST_BYTES = 256 << 20
"""The size of the largest report that is read: that of 10,000 nodes has 5 MB."""

_DATA = re.compile(rb'<script type="application/json" id="data">([^<]*)</script>')


@dataclass(frozen=True, slots=True)
class OtherReport:
    """The data of another report, and the name of its file."""

    name: str
    data: dict[str, Any]


def read_other(path: str | Path | None, report: str | Path | None) -> OtherReport | None:
    """The report in a file, which the new report `report` is to show too; None without a path.

    Its contents are not trusted: the page shows them as text only. Raises UsageError (HC120) without a new report,
    OutputFileError (HC111) if it would overwrite the other one, FileMissingError (HC101) for a file that cannot be
    read, and InputError (HC100) for one that is not a report.
    """
    if path is None:
        return None
    if report is None:
        raise UsageError(
            "another report is shown in a new one, which was not asked for",
            where=f"--compare {path}",
            hint="add --report out.html",
        )
    with reading({path: "the other report"}):
        refuse_input(report)
    try:
        with open_file(path) as file:
            page = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        pass_foreign(error)
        raise FileMissingError(f"cannot read the other report: {error}", where=str(path)) from None
    if len(page) > MOST_BYTES:
        raise _wrong(path, f"it has more than {MOST_BYTES >> 20} MiB", "give a report that heterocc wrote")
    found = _DATA.search(page)
    if found is None:
        raise _wrong(path, "it is not a report of heterocc", "give a page that --report wrote")
    try:
        data = parse_json(found[1].decode(), parse_constant=_no_number)
    except ValueError as error:
        pass_foreign(error)
        raise _wrong(path, "its data is damaged", "write it again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _wrong(path, "another version of heterocc wrote it", "write it again with this one")
    return OtherReport(Path(path).name, data)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _wrong(path: str | Path, reason: str, hint: str) -> InputError:
    return InputError(f"the other report cannot be compared: {reason}", where=str(path), hint=hint)
