"""TVM targets of devices; attributes that TVM refuses are reported as errors of the user's device file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tvm

from heterocc.artifacts.errors import DeviceError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import host_cpu

if TYPE_CHECKING:
    from tvm.target import Target


def tvm_target(device: TargetDevice, attributes: Mapping[str, Any], hint: str) -> Target:
    """The `tvm.target.Target` with these attributes. Raises DeviceError with the hint if TVM refuses them."""
    try:
        return tvm.target.Target({k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()})
    except (ValueError, TypeError, RuntimeError) as error:
        pass_foreign(error)
        raise DeviceError(
            f"TVM refuses the target of device {device.name}: {str(error).splitlines()[0]}",
            where=device.target_json(),
            hint=hint,
        ) from error


def gpu_target(device: TargetDevice, kind: str, **defaults: Any) -> Target:
    """The target of a GPU: the device's attributes, and `defaults` for those that it does not set.

    Host code is for the CPU of this machine, with baseline instructions. Raises DeviceError if TVM refuses the
    attributes.
    """
    host = {"kind": "llvm", "mtriple": f"{host_cpu().arch}-linux-gnu"}
    attributes: dict[str, Any] = {**device.target, "kind": kind}
    for name, value in {**defaults, "host": host}.items():
        attributes.setdefault(name, value)
    return tvm_target(device, attributes, "check the target attributes of the device file")
