"""Sends values between memories, and knows which memories are one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from heterocc.artifacts.manifest import Variant
from heterocc.runtime.native import opencl_devices
from heterocc.runtime.schedule import Copy, Space
from heterocc.runtime.tvm_api import tvm_api


def shared_spaces(variant: Variant) -> frozenset[Space]:
    """Devices of the variant that compute in the host's memory, so that nothing need be sent: OpenCL on a CPU (PoCL).

    GPUs that share it are not among them: OpenCL wants their buffers mapped and unmapped around the host's use.
    """
    wanted = {(d.backend, d.index) for d in variant.devices if d.backend == "opencl"}
    if not any(variant.devices[p.device].backend == "opencl" for p in variant.partitions):
        return frozenset()
    return frozenset(
        Space("opencl", index)
        for index, device in enumerate(opencl_devices())
        if ("opencl", index) in wanted and device.type == "cpu" and device.shares_host_memory
    )


def bind_copy(step: Copy, tensors: Mapping[tuple[int, Space], Any]) -> Callable[[], Any]:
    """A call without arguments that sends the value; when it returns from a copy to the host, the bytes are there."""
    source, target = tensors[step.value, step.source], tensors[step.value, step.target]
    return partial(tvm_api().copy, source, target)
