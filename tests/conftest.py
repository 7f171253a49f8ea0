"""Options and fixtures of all tests, and the requirements of HETEROCC_REQUIRE."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from heterocc.runtime.fault_variables import WRONG_KERNEL, honoured
from heterocc.runtime.native import cuda_unavailable_reason, opencl_unavailable_reason, vulkan_unavailable_reason
from tests.browser import running_browser
from tests.browser import unavailable_reason as browser_unavailable_reason
from tests.emulator import unavailable_reason as emulator_unavailable_reason
from tests.golden_files import Golden

# A busy machine is no defect of the code: examples have no deadline and may be slow to draw.
settings.register_profile("heterocc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("heterocc")

ROOT = str(Path(__file__).parents[1])
# Programs that tests start import the package `tests`, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))

# Times that were measured on this machine would change placements.
os.environ["HETEROCC_CALIBRATION"] = "off"

MISSING: Mapping[str, Callable[[], str | None]] = {
    "opencl": opencl_unavailable_reason,
    "vulkan": vulkan_unavailable_reason,
    "spirv-val": lambda: None if shutil.which("spirv-val") else "it is not on the PATH (Debian: spirv-tools)",
    "aarch64": emulator_unavailable_reason,
    "cuda": cuda_unavailable_reason,
    "browser": browser_unavailable_reason,
}
"""The names that HETEROCC_REQUIRE accepts, each with a function that returns the reason if it is missing here."""

_GIVEN = frozenset(os.environ)
"""The variables with which the whole run was started, such as a simulated failure for all of its tests."""

_STARTS: dict[str, Mapping[str, Any]] = {}
"""The state of each test module's generator before its first test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden files; changed ones fail once")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run if something in HETEROCC_REQUIRE (a comma-separated list) is missing: its tests would skip."""
    for name in filter(None, os.environ.get("HETEROCC_REQUIRE", "").split(",")):
        if name not in MISSING:
            raise pytest.UsageError(f"HETEROCC_REQUIRE names '{name}'; it may name {', '.join(MISSING)}")
        reason = MISSING[name]()
        if reason is not None:
            raise pytest.UsageError(f"HETEROCC_REQUIRE asks for {name}, which the tests cannot use: {reason}")


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of collections of garbage, which take a twentieth of the suite else."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_simulated_failure_is_left() -> Iterator[None]:
    """Refuse a test that makes this process simulate failures of a driver, because a plug-in never stops to do so."""
    yield
    left = [name for name in honoured() if name != WRONG_KERNEL and name not in _GIVEN]
    assert not left, f"{', '.join(left)} is in force in this process from now on: set it in a fresh one"


@pytest.fixture(autouse=True)
def _numbers_do_not_depend_on_other_tests(request: pytest.FixtureRequest) -> None:
    """Set a module's generator `RNG` back, so that a test draws the same numbers alone as after others."""
    generator = getattr(request.module, "RNG", None)
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _STARTS.setdefault(request.module.__name__, generator.bit_generator.state)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--bless")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests in the browser last: Playwright leaves an event loop running, beside which asyncio.run refuses."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser, once for all tests of a process: Playwright runs one at a time."""
    reason = browser_unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with running_browser() as found:
        yield found
