"""The TVM target of a CPU device."""

from __future__ import annotations

from typing import Any

import tvm

from heterocc.artifacts.errors import DeviceError
from heterocc.compiler.devices.device import Device
from heterocc.compiler.devices.host import host_cpu


def cpu_target(device: Device) -> Any:
    """The `tvm.target.Target` that a CPU device compiles for; this machine's CPU where the device names none.

    Raises DeviceError for attributes that TVM refuses.
    """
    attributes = dict(device.target) or host_cpu().target
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()}
    plain.setdefault("kind", "llvm")
    try:
        return tvm.target.Target(plain)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DeviceError(
            f"TVM refuses the target of device {device.name}: {str(error).splitlines()[0]}",
            where=device.target_json(),
            hint="check mtriple, mcpu and mattr",
        ) from error


def triple_of(target: Any) -> str | None:
    """The target's triple, None for this machine's."""
    triple = target.attrs.get("mtriple")
    return str(triple) if triple else None


def vector_lanes(target: Any) -> int:
    """How many float32 one vector register holds."""
    return max(4, int(tvm.target.codegen.llvm_get_vector_width(target)) // 32)
