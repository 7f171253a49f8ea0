"""The compiler of a driver is loaded ahead, for the devices for which it takes long."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.checking.ahead import warm_up
from heterocc.compiler.devices.device import TargetDevice
from heterocc.runtime.native import opencl_api

HERE = TargetDevice("OPENCL", "opencl", software=True)


def test_only_software_devices_of_this_machine_are_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    begun = threading.Event()

    def note(index: int) -> None:
        seen.append(index)
        begun.set()
        raise HeteroccError("what the check reports")

    monkeypatch.setattr(opencl_api, "warm_up", note)
    others = [dataclasses.replace(HERE, software=False), dataclasses.replace(HERE, present=False)]
    warm_up([TargetDevice("CPU", "cpu"), *others, dataclasses.replace(HERE, index=3)])
    assert begun.wait(10)
    assert seen == [3]


@pytest.mark.skipif(opencl_api.opencl_unavailable_reason() is not None, reason="no OpenCL device here")
def test_the_driver_compiles_the_kernel_that_does_nothing() -> None:
    opencl_api.warm_up(0)
    with pytest.raises(Exception, match="device"):
        opencl_api.warm_up(99)
