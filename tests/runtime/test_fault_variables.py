"""A process whose plug-in simulates failures warns of it."""

from __future__ import annotations

import pytest

from tests.fresh_process import stderr_of

WARNING = "is set: "

DEVICES = """
import threading
from heterocc.runtime.native import {api}_devices
for thread in [threading.Thread(target={api}_devices) for _ in range(4)]:
    thread.start()
    thread.join()
assert {api}_devices()
"""


@pytest.mark.parametrize(
    ("api", "fault"),
    [
        pytest.param("opencl", "discrete", marks=pytest.mark.opencl),
        pytest.param("vulkan", "discrete,slow", marks=pytest.mark.vulkan),
    ],
)
def test_a_process_whose_plug_in_simulates_failures_warns_once_on_stderr_and_once_in_python(
    api: str, fault: str
) -> None:
    variable = f"HETEROCC_{api.upper()}_FAULT"
    lines = [x for x in stderr_of(DEVICES.format(api=api), **{variable: fault}).splitlines() if WARNING in x]
    assert len(lines) == 2
    native, python = sorted(lines, key=lambda line: "RuntimeWarning" in line)
    assert native.startswith(f"warning: {variable} is set: heterocc's ") and f"simulates failures ('{fault}')" in native
    assert f"RuntimeWarning: {variable} is set: this process simulates failures ('{fault}')" in python
    silenced = stderr_of(DEVICES.format(api=api), **{variable: fault, "PYTHONWARNINGS": "ignore"})
    assert silenced.count(WARNING) == 1 and native in silenced


@pytest.mark.parametrize("api", [pytest.param(a, marks=getattr(pytest.mark, a)) for a in ("opencl", "vulkan")])
def test_a_variable_that_is_empty_simulates_nothing_and_warns_of_nothing(api: str) -> None:
    assert WARNING not in stderr_of(DEVICES.format(api=api), **{f"HETEROCC_{api.upper()}_FAULT": ""})
