"""The accelerators of this machine, as devices."""

from __future__ import annotations

from heterocc.compiler.devices.device import Device


def present_devices() -> tuple[Device, ...]:
    """Devices of all GPU back ends, hardware and software, named `OPENCL`, `OPENCL.1` … in the driver's order."""
    return ()
