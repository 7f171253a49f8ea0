"""The features of this machine, and a check of a variant's requirements before any code is loaded."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Callable, Mapping
from importlib import util
from types import MappingProxyType

from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import Device, Producer, Variant
from heterocc.runtime.execute.ort import OLDEST_TEXT, too_old
from heterocc.runtime.machine.matrix_permission import is_matrix_feature, may_use_matrices
from heterocc.runtime.native.processor import cpuinfo
from heterocc.runtime.native.tvm_libraries import tvm_version

DriverReason = Callable[[Device], str | None]
"""The reason why a device cannot be used here (no driver, no such index, a capability missing), or None if it can.

For back ends other than `cpu` and `ort`.
"""

_ARCHS: Mapping[str, str] = MappingProxyType({"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"})

_X86 = (
    "adx aes avx avx2 avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vl bmi2 clflushopt clwb cmov cx16 "
    "cx8 f16c fma fma4 fsgsbase fxsr gfni mmx movbe movdir64b movdiri popcnt rdpid rdseed serialize sse sse2 sse4a "
    "ssse3 tbm vaes vpclmulqdq waitpkg xop xsave xsavec xsaveopt"
)
_X86_RENAMED = {
    "3dnowprefetch": "prfchw",
    "abm": "lzcnt",
    "amx_bf16": "amx-bf16",
    "amx_complex": "amx-complex",
    "amx_fp16": "amx-fp16",
    "amx_int8": "amx-int8",
    "amx_tile": "amx-tile",
    "avx10": "avx10.1",
    "avx512_bf16": "avx512bf16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_fp16": "avx512fp16",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vp2intersect": "avx512vp2intersect",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_ifma": "avxifma",
    "avx_ne_convert": "avxneconvert",
    "avx_vnni": "avxvnni",
    "avx_vnni_int16": "avxvnniint16",
    "avx_vnni_int8": "avxvnniint8",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "pclmulqdq": "pclmul",
    "pni": "sse3",
    "rdrand": "rdrnd",
    "sha_ni": "sha",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}
_ARM = "aes bf16 bti dit flagm i8mm mte sb sha2 sha3 sm4 sme sme2 ssbs sve sve2 sve2p1"
_ARM_RENAMED = {
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "asimdhp": "fullfp16",
    "asimdrdm": "rdm",
    "atomics": "lse",
    "crc32": "crc",
    "dcpop": "ccpp",
    "fcma": "complxnum",
    "flagm2": "altnzcv",
    "fp": "fp-armv8",
    "frint": "fptoint",
    "ilrcpc": "rcpc-immo",
    "jscvt": "jsconv",
    "lrcpc": "rcpc",
    "paca": "pauth",
    "rng": "rand",
    "svebitperm": "sve-bitperm",
    "uscat": "lse2",
}

CPU_FLAGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "x86_64": MappingProxyType({flag: flag for flag in _X86.split()} | _X86_RENAMED),
        "aarch64": MappingProxyType({flag: flag for flag in _ARM.split()} | _ARM_RENAMED),
    }
)
"""For each architecture, the flags of /proc/cpuinfo and LLVM's names for the features they stand for.

Sources: Linux, arch/x86/include/asm/cpufeatures.h and Documentation/arch/arm64/elf_hwcaps.rst; LLVM 22, X86.td and
AArch64Features.td. Features that compiled code cannot use by itself (system instructions) are left out.
"""

_IMPLIED: Mapping[str, Mapping[str, str]] = {
    "x86_64": {"sse4.2": "crc32"},
    "aarch64": {"sve-bitperm": "sve2-bitperm"},
}
"""Features without a flag, by the feature that implies them."""

_INSTALL = "pip install onnxruntime ml_dtypes"

_VECTOR = ("avx", "amx-", "apx", "sve", "sme", "ssve")
"""Prefixes of instruction sets: such a feature that is not in the table counts as missing, not as a hint."""


@frozen
class HostInfo:
    """This machine: `cpu_features` in LLVM's names; `tvm` is the version of the TVM runtime, None without one.

    `onnxruntime` is whether a version that is new enough is installed; None to look when a device needs it.
    """

    arch: str
    cpu_features: frozenset[str]
    tvm: str | None
    onnxruntime: bool | None = None


@functools.cache
def host() -> HostInfo:
    """The features of this machine; imports neither TVM nor ONNX Runtime."""
    arch = plain_arch(platform.machine())
    return HostInfo(arch, cpu_features(cpuinfo(), arch), tvm_version())


@functools.cache
def has_onnxruntime() -> bool:
    """Return whether an onnxruntime that is new enough is installed, without importing it."""
    if util.find_spec("onnxruntime") is None:
        return False
    from importlib import metadata  # not at the top: takes long to import

    try:
        return not too_old(metadata.version("onnxruntime"))
    except metadata.PackageNotFoundError:  # other distributions of the same package, such as onnxruntime-gpu
        return True


def plain_arch(arch: str) -> str:
    """LLVM's name of an architecture: `x86_64` for `AMD64`, `aarch64` for `arm64`."""
    return _ARCHS.get(arch.lower(), arch.lower())


def cpu_features(text: str, arch: str) -> frozenset[str]:
    """LLVM's names of the features that every processor in the text of a /proc/cpuinfo has."""
    names = CPU_FLAGS.get(arch, {})
    key = "Features" if arch == "aarch64" else "flags"
    lines = re.findall(rf"^{key}\s*:(.*)$", text, re.MULTILINE)
    # Cores of one machine may differ, and a thread may run on any.
    flags = frozenset.intersection(*(frozenset(line.split()) for line in lines)) if lines else frozenset()
    features = {names[flag] for flag in flags if flag in names}
    features.update(implied for feature, implied in _IMPLIED.get(arch, {}).items() if feature in features)
    return frozenset(features)


def known_features(arch: str) -> frozenset[str]:
    """Every feature of an architecture that `cpu_features` can find."""
    return frozenset(CPU_FLAGS.get(arch, {}).values()) | frozenset(_IMPLIED.get(arch, {}).values())


def why_not(variant: Variant, producer: Producer, machine: HostInfo, drivers: DriverReason) -> tuple[str, ...]:
    """Reasons why a variant cannot run on a machine, one sentence each without a full stop; empty if it can."""
    reasons: list[str] = []
    used = sorted({part.device for part in variant.partitions})
    for device in (variant.devices[index] for index in used):
        if device.backend == "ort":
            if not (has_onnxruntime() if machine.onnxruntime is None else machine.onnxruntime):
                missing = f"onnxruntime {OLDEST_TEXT} or later, which is not installed ({_INSTALL})"
                reasons.append(f"device {device.name} needs {missing}")
            continue
        reasons += _cpu_reasons(device, machine)
        if device.backend != "cpu":
            reason = drivers(device)
            if reason is not None:
                reasons.append(reason)
    if any(part.kind == "tvm" for part in variant.partitions):
        reason = _tvm_reason(producer.tvm, machine.tvm)
        if reason is not None:
            reasons.append(reason)
    return tuple(dict.fromkeys(reasons))


def _cpu_reasons(device: Device, machine: HostInfo) -> list[str]:
    if device.arch is not None and plain_arch(device.arch) != machine.arch:
        return [f"the code for {device.name} is for {device.arch}, this machine is {machine.arch}"]
    known = known_features(machine.arch)
    # LLVM's lists mix features with scheduling hints ("fast-gather"), which are not properties of a machine.
    wanted = [f for f in device.cpu_features if f in known or f.startswith(_VECTOR)]
    missing = [f for f in wanted if f not in machine.cpu_features]
    if missing:
        if not machine.cpu_features:
            return [
                f"the code for {device.name} needs CPU features, and those of this machine are not known, because "
                f"/proc/cpuinfo cannot be read and the CPU plug-in is not installed: {', '.join(missing)}"
            ]
        return [f"the code for {device.name} needs CPU features that this machine lacks: {', '.join(missing)}"]
    # Asked only for code that needs it: the permission changes what the process may do, such as small signal stacks.
    refused = [f for f in wanted if is_matrix_feature(f)]
    if refused and not may_use_matrices():
        return [
            f"the code for {device.name} needs CPU features that the system does not permit this process to use: "
            f"{', '.join(refused)}"
        ]
    return []


def _tvm_reason(wanted: str | None, found: str | None) -> str | None:
    if found is None:
        return "TVM's runtime libraries are not installed"
    if wanted is None:
        return "the bundle does not state the TVM version that it was compiled with"
    # Versions of one minor series share their binary interface; the wheels are pinned to it.
    if wanted.split(".")[:2] != found.split(".")[:2]:
        return f"the bundle was compiled with TVM {wanted}, but TVM {found} is installed"
    return None
