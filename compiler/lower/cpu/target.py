"""The TVM target of a CPU device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import tvm

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import host_cpu, target_arch
from heterocc.compiler.lower.codegen.tvm_target import tvm_target

if TYPE_CHECKING:
    from tvm.target import Target


OPTIMISATION = 2
"""LLVM's level of optimisation. 3 takes a tenth longer for the same speed; with 1, products run 1.4 times as long."""

ANY_X86 = ("+prfchw",)
"""Instructions that every 64-bit x86 accepts: prefetches of lines to write, which older CPUs take for no operation."""


def cpu_target(device: TargetDevice) -> Target:
    """The `tvm.target.Target` that a CPU device compiles for; this machine's CPU if the device names none.

    Raises DeviceError for attributes that TVM refuses.
    """
    attributes = {"kind": "llvm", "opt-level": OPTIMISATION, **(device.target or host_cpu().target)}
    if target_arch(attributes) == "x86_64":
        given = attributes.get("mattr", ())
        attributes["mattr"] = (*ANY_X86, *(given if isinstance(given, tuple) else str(given).split(",")))
    return tvm_target(device, attributes, "check mtriple, mcpu and mattr")


def triple_of(target: Target) -> str | None:
    """The target's triple, None for this machine's."""
    triple = target.attrs.get("mtriple")
    return str(triple) if triple else None


def features_of(target: Target) -> frozenset[str]:
    """LLVM's names of the instructions that a target has."""
    return _features(str(target))


@cache
def _features(target: str) -> frozenset[str]:
    return frozenset(map(str, tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(target))))


def vector_lanes(target: Target) -> int:
    """The number of float32 elements in a vector register."""
    # `llvm_get_vector_width` says 512 bits for every x86.
    features = features_of(target)
    if "avx512f" in features:
        return 16
    return 8 if "avx" in features else 4
