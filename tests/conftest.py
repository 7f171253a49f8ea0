"""Options and fixtures that all tests share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no defect of the code: examples have no deadline and may be slow to draw.
settings.register_profile("heterocc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("heterocc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden files; changed ones fail once")


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


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--bless")))
