"""Golden files are blessed on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_files import Golden


def test_an_equal_text_passes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    Golden(False).check(tmp_path / "a", "text")
    Golden(True).check(tmp_path / "a", "text")


def test_a_missing_or_different_file_fails_and_stays(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="make it with --bless"):
        Golden(False).check(tmp_path / "a", "text")
    (tmp_path / "b").write_text("other")
    with pytest.raises(AssertionError, match="b differs"):
        Golden(False).check(tmp_path / "b", "text")
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("b", "other")]


def test_blessing_rewrites_then_fails_once(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="read its diff"):
        Golden(True).check(tmp_path / "new" / "a", "text")
    Golden(True).check(tmp_path / "new" / "a", "text")
