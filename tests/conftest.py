"""Options and fixtures that all tests share."""

from __future__ import annotations

import pytest
from golden_files import Golden
from hypothesis import HealthCheck, settings

# A busy machine is no defect of the code: examples have no deadline and may be slow to draw.
settings.register_profile("heterocc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("heterocc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden files; changed ones fail once")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--bless")))
