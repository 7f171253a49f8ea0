"""The CPU of this machine: its instruction set in LLVM's names, and estimates for the cost model.

TVM is needed only for the features of a CPU name that is not an x86-64 level (`CPU.mcpu=znver4`), which LLVM knows.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.runtime.machine.compat import CPU_FLAGS, cpu_features, plain_arch
from heterocc.runtime.machine.matrix_permission import is_matrix_feature, may_use_matrices
from heterocc.runtime.native.processor import cpuinfo

_V2 = frozenset(["crc32", "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"])
_V3 = _V2 | frozenset(["avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
X86_LEVELS: Mapping[str, frozenset[str]] = {"x86-64": frozenset(), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
"""Features of the micro-architecture levels of the x86-64 psABI, in LLVM's names, without those of the baseline."""

_X86_EXTRA = frozenset(
    [
        "amx-int8",
        "amx-tile",
        "avx512bf16",
        "avx512bitalg",
        "avx512fp16",
        "avx512ifma",
        "avx512vbmi",
        "avx512vbmi2",
        "avx512vnni",
        "avx512vpopcntdq",
        "avxvnni",
        "gfni",
    ]
)
_ARM_EXTRA = frozenset(["dotprod", "fullfp16", "lse", "bf16", "i8mm"])
"""Features beyond a CPU's level that speed up numerical kernels."""

ZEN4 = "znver4"
"""LLVM's name of the CPUs with AVX-512 that compute vectors of 512 bits in two halves."""

ZEN5 = "znver5"
"""LLVM's name of CPUs whose third-level cache is as near as that of Zen 4."""

BASELINE: Mapping[str, frozenset[str]] = {
    "x86_64": frozenset(["cmov", "cx8", "fxsr", "mmx", "sse", "sse2"]),
    "aarch64": frozenset(["fp-armv8", "neon"]),
}
"""Features that every machine of an architecture has, which are not listed as requirements of code."""

DETECTABLE = frozenset(f for flags in CPU_FLAGS.values() for f in flags.values()) | {"crc32", "sve2-bitperm"}
"""Features that can be listed as requirements of code: those that the runtime can detect."""


@dataclass(frozen=True, slots=True)
class HostCpu:
    """One CPU: `features` in LLVM's names, `cores` available to the process, nominal `clock` in Hz.

    `model` is LLVM's name of the CPU if code for it differs from that for other CPUs with these features.
    """

    arch: str
    name: str
    features: frozenset[str]
    cores: int
    clock: float
    model: str | None = None

    @property
    def target(self) -> dict[str, TargetAttr]:
        """TVM target attributes for code that uses all features of this CPU that speed up kernels.

        The CPU is named by an x86-64 level and single features rather than by its model (`znver5`), because a
        hypervisor may hide features of the model, and because the code's requirements can then be checked one by one.
        TVM's attribute `model` allows no other instructions; generators of kernels read it.
        """
        target: dict[str, TargetAttr] = {"kind": "llvm", "mtriple": f"{self.arch}-linux-gnu"}
        if self.model is not None:
            target["model"] = self.model
        if self.arch == "x86_64":
            level = x86_level(self.features)
            target["mcpu"] = level
            attrs = [f"+{f}" for f in sorted((self.features & _X86_EXTRA) - X86_LEVELS[level])]
            if level == "x86-64-v4":
                attrs.append("-prefer-256-bit")
        else:
            target["mcpu"] = "generic"
            attrs = [f"+{f}" for f in sorted(self.features & _ARM_EXTRA)]
        if attrs:
            target["mattr"] = tuple(attrs)
        return target

    @property
    def flops(self) -> float:
        """The estimated peak of float32 FLOP/s: cores x clock x SIMD lanes x two FMA units x two operations."""
        return peak_flops(self.features, self.cores, self.clock)

    @property
    def bandwidth(self) -> float:
        """The estimated memory bytes/s: 12 GB/s per core up to 8 cores (two to four channels of DDR4 or DDR5)."""
        return 12e9 * min(self.cores, 8)


def peak_flops(features: frozenset[str], cores: int, clock: float) -> float:
    """Peak float32 FLOP/s of `cores` cores at `clock` Hz with the SIMD width of `features`."""
    if "avx512f" in features:
        lanes = 16
    elif "avx2" in features:
        lanes = 8
    else:
        lanes = 4
    return cores * clock * lanes * 2 * 2


def x86_level(features: frozenset[str]) -> str:
    """The highest x86-64 level whose features are all in `features`."""
    return max((level for level, needs in X86_LEVELS.items() if needs <= features), key=lambda level: level)


@functools.cache
def host_cpu() -> HostCpu:
    """The CPU of this machine (`cpuinfo`); if nothing is known of it, the baseline of its architecture.

    It has no features that the system does not permit this process to use.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpu = parse_cpuinfo(cpuinfo(), arch=platform.machine(), cores=affinity, clock=_max_clock())
    matrices = frozenset(filter(is_matrix_feature, cpu.features))
    return replace(cpu, features=cpu.features - matrices) if matrices and not may_use_matrices() else cpu


def parse_cpuinfo(text: str, *, arch: str, cores: int, clock: float | None) -> HostCpu:
    """The CPU that a /proc/cpuinfo `text` describes.

    `clock` (Hz) is from cpufreq if known. The default is half the bogomips of x86 (the rate of the time stamp counter),
    which is constant, unlike `cpu MHz`; plans must be reproducible.
    """
    arch = plain_arch(arch)
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    bogomips = re.fullmatch(r"\d+(\.\d+)?", fields.get("bogomips", "")) if arch == "x86_64" else None
    nominal = round(float(bogomips[0]) / 2, -2) * 1e6 if bogomips else 0.0
    name = fields.get("model name") or arch
    features = cpu_features(text, arch)
    # Of AMD's family 19h, Zen 3 lacks AVX-512.
    is_known = fields.get("vendor_id") == "AuthenticAMD" and "avx512f" in features
    model = {"25": ZEN4, "26": ZEN5}.get(fields.get("cpu family", "")) if is_known else None
    return HostCpu(arch, name, features, max(1, cores), clock or nominal or 2e9, model)


def _max_clock() -> float | None:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    try:
        return int(path.read_text()) * 1e3
    except (OSError, ValueError):
        return None


def target_arch(target: Mapping[str, TargetAttr]) -> str:
    """The architecture of an llvm target (`x86_64`, `aarch64`), by default the host's."""
    triple = target.get("mtriple")
    arch = triple.split("-")[0] if isinstance(triple, str) and triple else host_cpu().arch
    return plain_arch(arch)


def code_features(target: Mapping[str, TargetAttr]) -> tuple[str, ...]:
    """LLVM's names of the CPU features that code for an llvm `target` may use, sorted, without the baseline's.

    Only features that can be detected on a machine (`DETECTABLE`) are included.
    """
    arch = target_arch(target)
    cpu = target.get("mcpu", "x86-64" if arch == "x86_64" else "generic")
    mattr = target.get("mattr", ())
    attrs = mattr if isinstance(mattr, tuple) else tuple(str(mattr).split(","))
    # A version of the architecture, such as +v8.2a, stands for many features.
    versions = tuple(attr for attr in attrs if re.fullmatch(r"\+v[0-9.]+a", attr))
    level = X86_LEVELS.get(str(cpu))
    features = set(_ask_llvm(arch, str(cpu), versions) if level is None else level)
    for attr in attrs:
        if attr.startswith("+"):
            features.add(attr[1:])
        elif attr.startswith("-"):
            features.discard(attr[1:])
    return tuple(sorted((features & DETECTABLE) - BASELINE.get(arch, frozenset())))


@functools.cache
def _ask_llvm(arch: str, cpu: str, versions: tuple[str, ...] = ()) -> frozenset[str]:
    if cpu == "generic" and not versions:
        return frozenset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tvm
        from tvm.target import codegen

        named = {"kind": "llvm", "mtriple": f"{arch}-linux-gnu", "mcpu": cpu}
        target = tvm.target.Target({**named, "mattr": list(versions)} if versions else named)
        return frozenset(str(f) for f in codegen.llvm_get_cpu_features(target))


def is_this_cpu(device: TargetDevice) -> bool:
    """Whether a device's code is for exactly this machine's CPU."""
    return device.backend == "cpu" and device.present and dict(device.target or host_cpu().target) == host_cpu().target


def runs_here(target: Mapping[str, TargetAttr]) -> bool:
    """Return whether this machine can run code for an llvm `target`."""
    host = host_cpu()
    return target_arch(target) == host.arch and set(code_features(target)) <= host.features
