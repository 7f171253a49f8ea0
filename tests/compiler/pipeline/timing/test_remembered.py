"""Times of plans in the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterocc.artifacts.manifest import Range
from heterocc.compiler.files.records import DiskRecords
from heterocc.compiler.pipeline.report import TimedPlan
from heterocc.compiler.pipeline.timing.remembered import Timing, read, write

KEY = "ab" * 32


def test_times_are_read_as_they_were_written_with_short_reasons(tmp_path: Path) -> None:
    records = DiskRecords(tmp_path / "cache", "choice")
    kept = TimedPlan(name="merge", seconds=2.0, kept=True, also=("CPU alone",), each=(1.0, 4.0), where="for n up to 8")
    timing = Timing(
        plans=(kept, TimedPlan(name="ORT alone", why_not="x" * 900)), at=" at n=8", bounds={"n": Range(max=8)}
    )
    assert read(records, KEY) is None
    write(records, KEY, timing)
    found = read(records, KEY)
    assert found is not None and (found.at, found.bounds) == (timing.at, timing.bounds)
    assert found.plans == (kept, TimedPlan(name="ORT alone", why_not="x" * 300))


@pytest.mark.parametrize("damage", [{"plans": [{"name": 1}]}, {"plans": [], "bounds": []}, {"at": "", "bounds": {}}])
def test_a_damaged_record_has_no_times(tmp_path: Path, damage: dict[str, object]) -> None:
    records = DiskRecords(tmp_path / "cache", "choice")
    records.write(KEY, {"at": "", "bounds": {}, **damage})
    assert read(records, KEY) is None
