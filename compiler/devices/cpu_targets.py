"""CPU targets of one bundle: `--cpu-targets x86-64-v3,x86-64-v4`."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import warnings
from collections.abc import Sequence

from heterocc.artifacts.errors import Hint, PropertyError, UsageError
from heterocc.artifacts.settings import CPU_PROPERTY
from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.compiler.devices.host import X86_LEVELS, code_features, host_cpu, peak_flops, runs_here, target_arch
from heterocc.runtime.machine.compat import CPU_FLAGS

_NATIVE = "native"
_PAIRS = "avx512bf16"
_ARM = re.compile(r"armv(?:(8)(?:\.([1-9]))?|(9)(?:\.([1-6]))?)-a")


def with_cpu_targets(
    lists: Sequence[tuple[TargetDevice, ...]], names: Sequence[str], properties: Sequence[str] = ()
) -> tuple[tuple[tuple[TargetDevice, ...], ...], tuple[str, ...]]:
    """Each list of devices that has the CPU once for each target, and notes for the user.

    The targets are in order of preference: those of this machine's architecture before others, and those with more
    features first. A list with a GPU gets only targets of this machine's architecture, which the GPU's host code has.

    Raises UsageError (HC120) for a name that is not known, a target that is given twice, a list of targets without a
    CPU among the devices, or properties that name another CPU.
    """
    if not names:
        return tuple(lists), ()
    targets = _ordered(names)
    if not any(device.backend == "cpu" for devices in lists for device in devices):
        raise UsageError(
            "CPU targets are given, but no CPU is listed", where=_where(names), hint="add CPU to the devices"
        )
    for spec in properties:
        if re.fullmatch(r"[^=]*\.(mcpu|mtriple|mattr)", spec.partition("=")[0].strip(), re.IGNORECASE):
            raise UsageError(f"both CPU targets and {spec} name the CPU to compile for", hint="leave one of them out")
    found: list[tuple[TargetDevice, ...]] = []
    notes: list[str] = []
    for devices in lists:
        labels = ",".join(d.name for d in devices)
        if not any(d.backend == "cpu" for d in devices):
            found.append(devices)
            continue
        here = [name for name in targets if target_arch(targets[name]) == host_cpu().arch]
        tied = any(d.backend not in ("cpu", "ort") for d in devices)
        if tied and len(here) < len(targets):
            others = ", ".join(name for name in targets if name not in here)
            notes.append(
                f"{labels} is not compiled for {others}: the code that starts its kernels is for {host_cpu().arch}"
            )
        chosen = here if tied else list(targets)
        if not chosen:
            raise UsageError(f"no CPU target fits {labels}", where=_where(names), hint=f"add one of {host_cpu().arch}")
        found += [tuple(_aimed(d, name, targets[name]) for d in devices) for name in chosen]
    return tuple(found), tuple(notes)


def with_possible_products(
    lists: Sequence[tuple[TargetDevice, ...]], fall_back: bool
) -> tuple[tuple[tuple[TargetDevice, ...], ...], tuple[str, ...]]:
    """Each list of devices with `precision=bf16` only on CPUs that multiply in bfloat16, and notes for the user.

    With `fall_back` others get float32. Without it, raises PropertyError (HC405) if there is one.
    """
    notes: list[str] = []

    def possible(device: TargetDevice) -> TargetDevice:
        if (
            device.backend != "cpu"
            or not device.rounds_products
            or _PAIRS in code_features(device.target or host_cpu().target)
        ):
            return device
        name = device.settings.cpu or str(device.target.get("mcpu", device.target.get("mtriple", "")))
        lacks = f"the CPU that the code is for ({name}) lacks AVX512-BF16"
        if not fall_back:
            raise PropertyError(
                f"{device.name} cannot have precision=bf16: {lacks}",
                hint=f"leave {device.name}.precision out, or name another CPU, for example {device.name}.mcpu=znver4",
            )
        notes.append(f"precision=bf16 is not used for {name}, which lacks AVX512-BF16: its products are of float32")
        return dataclasses.replace(device, properties={k: v for k, v in device.properties.items() if k != "precision"})

    return tuple(tuple(map(possible, devices)) for devices in lists), tuple(dict.fromkeys(notes))


def cpu_target_of(name: str) -> dict[str, TargetAttr]:
    """The TVM target of a CPU target's name: an x86-64 level, a CPU that LLVM knows, `armv8.2-a`, or `native`.

    Features follow after plus signs: `armv8.2-a+dotprod`. Raises UsageError (HC120) for an unknown name.
    """
    base, *features = name.lower().split("+")
    target = _base_target(base, name)
    arch = target_arch(target)
    known = sorted(set(CPU_FLAGS.get(arch, {}).values()))
    for feature in features:
        if feature not in known:
            raise _unknown(f"CPU target '{name}' has an unknown feature '{feature}'", feature, known, name)
    attrs = target.get("mattr", ())
    given = attrs if isinstance(attrs, tuple) else ()
    given = (*given, *(f"+{f}" for f in features if f"+{f}" not in given))
    if arch == "x86_64" and "avx512f" in code_features({**target, "mattr": given}) and "-prefer-256-bit" not in given:
        given = (*given, "-prefer-256-bit")
    return {**target, "mattr": given} if given else target


def _base_target(base: str, name: str) -> dict[str, TargetAttr]:
    if base == _NATIVE:
        return dict(host_cpu().target)
    if base in X86_LEVELS:
        return {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": base}
    arm = _ARM.fullmatch(base)
    if arm is not None:
        major, minor = arm[1] or arm[3], arm[2] or arm[4]
        version = f"+v{major}.{minor}a" if minor else f"+v{major}a"
        return {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic", "mattr": (version,)}
    for arch in ("x86_64", "aarch64"):
        if base in _llvm_names(arch):
            return {"kind": "llvm", "mtriple": f"{arch}-linux-gnu", "mcpu": base}
    known = [_NATIVE, *X86_LEVELS, *(f"armv8.{n}-a" for n in range(1, 10)), "armv8-a", "armv9-a"]
    known += [cpu for arch in ("x86_64", "aarch64") for cpu in sorted(_llvm_names(arch))]
    raise _unknown(f"there is no CPU target '{name}'", base, known, name)


def _unknown(message: str, word: str, known: Sequence[str], name: str) -> UsageError:
    close = difflib.get_close_matches(word, known, 3, 0.5)
    listed = "the nearest are " + ", ".join(close) if close else "for example x86-64-v3, x86-64-v4, armv8.2-a+dotprod"
    return UsageError(message, where=_where([name]), hint=listed)


def _where(names: Sequence[str]) -> Hint:
    return Hint(f"cpu_targets={list(names)!r}", f"--cpu-targets {','.join(names)}")


@functools.cache
def _llvm_names(arch: str) -> frozenset[str]:
    """The 64-bit CPUs of an architecture that LLVM knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tvm
        from tvm.target import codegen

        target = tvm.target.Target({"kind": "llvm", "mtriple": f"{arch}-linux-gnu"})
        names = {str(name) for name in codegen.llvm_get_cpu_archlist(target)} - {"generic"}
    # LLVM lists 32-bit CPUs of x86, too.
    old = re.compile(r"i[3-6]86|k6.*|pentium.*|athlon.*|winchip.*|c3.*|geode|lakemont|prescott|yonah")
    return frozenset(name for name in names if arch != "x86_64" or not old.fullmatch(name))


def _ordered(names: Sequence[str]) -> dict[str, dict[str, TargetAttr]]:
    """The targets by name, the preferred one first."""
    targets: dict[str, dict[str, TargetAttr]] = {}
    for name in names:
        if not name.strip():
            raise UsageError("the list of CPU targets has an empty name", where=_where(names))
        target = cpu_target_of(name.strip())
        same = next((other for other, known in targets.items() if known == target), None)
        if same is not None:
            raise UsageError(f"CPU targets '{same}' and '{name.strip()}' are the same", where=_where(names))
        targets[name.strip().lower()] = target

    def key(name: str) -> tuple[bool, int]:
        return target_arch(targets[name]) != host_cpu().arch, -len(code_features(targets[name]))

    return {name: targets[name] for name in sorted(targets, key=key)}


def _aimed(device: TargetDevice, name: str, target: dict[str, TargetAttr]) -> TargetDevice:
    """A CPU with another target; other devices as they are."""
    if device.backend != "cpu":
        return device
    cpu = host_cpu()
    return dataclasses.replace(
        device,
        target=target,
        present=runs_here(target),
        properties={**device.properties, CPU_PROPERTY: name},
        flops=peak_flops(frozenset(code_features(target)), cpu.cores, cpu.clock),
    )
