"""Compilers of drivers that are loaded in a thread while Python prepares the code that they are to compile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable

from heterocc.compiler.devices.device import TargetDevice


def warm_up(devices: Iterable[TargetDevice]) -> None:
    """Begin to load the compilers of OpenCL devices that are this machine's cores; errors are the check's to report."""
    for device in devices:
        if device.backend == "opencl" and device.software and device.present:
            threading.Thread(target=_warm_up, args=(device.index,), name="heterocc-warm-up").start()


def _warm_up(index: int) -> None:
    from heterocc.runtime.native import opencl_api

    with contextlib.suppress(Exception):
        opencl_api.warm_up(index)
