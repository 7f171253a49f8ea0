"""Texts held against committed files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Golden:
    """Compares texts with committed files; with `--bless` it rewrites them and fails once, so that the diff is read."""

    bless: bool

    def check(self, path: Path, text: str) -> None:
        expected = path.read_text(encoding="utf-8") if path.exists() else None
        if expected == text:
            return
        if not self.bless:
            assert expected is not None, f"there is no {path.name}; make it with --bless"
            assert text == expected, f"{path.name} differs; --bless if that is intended"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"blessed {path.name}: read its diff, then run again without --bless")
