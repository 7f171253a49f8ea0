"""The choice of a bundle's variants to try on this machine, in order, with reasons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from heterocc.artifacts.errors import (
    HeteroccError,
    Hint,
    IncompatibleBundleError,
    NativeCodeError,
    UnknownDeviceError,
    UsageError,
)
from heterocc.artifacts.frozen import frozen, replaced
from heterocc.artifacts.manifest import Device, Manifest, Variant
from heterocc.runtime.execute.chain import Options
from heterocc.runtime.execute.tvm_api import available_cores, max_threads
from heterocc.runtime.machine.compat import host, why_not
from heterocc.runtime.machine.ranking import kind_text, rank
from heterocc.runtime.native import cpu_api
from heterocc.runtime.native.tvm_libraries import REINSTALL
from heterocc.runtime.select.matching import answers, match_variants
from heterocc.runtime.select.request import DeviceRequest

if TYPE_CHECKING:
    from heterocc.runtime.machine.found import FoundDevice

How = Literal["asked", "first", "auto", "multi"]

_MAX_INT = 2**31 - 1
_FLOATS = frozenset(["float64", "float32", "float16", "bfloat16"])
_KNOWN = r"(CPU|ORT)|(GPU|OPENCL|VULKAN|CUDA)(\.[0-9]{1,3})?"


def driver_reason(device: Device) -> str | None:
    """As `heterocc.runtime.machine.devices.driver_reason`, which is imported when a variant needs a GPU."""
    from heterocc.runtime.machine import devices

    return devices.driver_reason(device)


def device_here(device: Device) -> FoundDevice:
    """As `heterocc.runtime.machine.devices.device_here`, which is imported for AUTO only."""
    from heterocc.runtime.machine import devices

    return devices.device_here(device)


@frozen
class Selection:
    """The variants to try, at least one and the best first; `passed` has the reasons why others were excluded.

    `asked`: the one variant for the devices that the caller named. `first`: the variants that can run, in the bundle's
    order. `auto`: the same, by capability. `multi`: one of several that share the requests.
    `remark` is the difference between an `asked` variant and the caller's list.
    """

    how: How
    variants: tuple[Variant, ...]
    passed: tuple[str, ...] = ()
    remark: str | None = None

    def note(self, variant: Variant) -> str:
        """The note on a variant that was loaded."""
        name = shown(variant)
        if self.how == "asked":
            return f"runs on {name}, {self.remark or 'as asked'}"
        if self.how == "multi":
            return f"MULTI runs requests on {name}" + (f", {self.remark}" if self.remark else "")
        if self.how == "auto":
            return (
                f"AUTO chose {name}, on {_first_device(variant)}"
                if name != device_list(variant)
                else (f"AUTO chose {name} ({_first_device(variant)})")
            )
        return f"runs on {name}"


def labels(variant: Variant) -> tuple[str, ...]:
    """The labels of the variant's devices, as given to `--devices`."""
    return tuple(d.name for d in variant.devices)


def device_list(variant: Variant) -> str:
    """The variant's devices in the form of `--devices`."""
    return ",".join(labels(variant))


def shown(variant: Variant) -> str:
    """The variant's devices, and the CPU that its code is for if the compile named several."""
    cpus = [d.settings.cpu for d in variant.devices if d.settings.cpu is not None]
    return device_list(variant) + (f" ({', '.join(cpus)})" if cpus else "")


def others_here(manifest: Manifest, variant: Variant) -> list[str]:
    """The `device_list` of each variant for other devices that can run on this machine."""
    choice = variant.shapes_of or variant.name
    others = (v for v in manifest.choices if v.name != choice and not _same_devices(v, variant))
    able = (device_list(v) for v in others if not reasons_against(manifest, v))
    return list(dict.fromkeys(able))


def reasons_against(manifest: Manifest, choice: Variant) -> tuple[str, ...]:
    """The reasons why a variant, or one for other shapes of the same choice, cannot run here; empty if all can."""
    return tuple(
        dict.fromkeys(
            reason
            for variant in manifest.with_shapes(choice)
            for reason in why_not(variant, manifest.producer, host(), driver_reason)
        )
    )


def select_variants(manifest: Manifest, asked: DeviceRequest, where: str, *, allow_native: bool = True) -> Selection:
    """The variants to try for `devices` of `load`; if nothing is asked for, in the bundle's order.

    Raises UnknownDeviceError if no variant or more than one matches, IncompatibleBundleError if no matching
    one can run, and, without `allow_native`, NativeCodeError if all matching variants hold compiled code. `MULTI` is
    for `select_each`.
    """
    if not allow_native:
        return _without_native(manifest, asked, where)
    if asked.kind == "first":
        return _that_run(manifest, manifest.choices, "first", where)
    if asked.is_multi:
        raise UsageError(
            f"{asked.text} names several variants, but one is needed here", hint="MULTI is for load, run and bench"
        )
    if asked.kind == "list":
        return _asked(manifest, list(asked.names), where)
    return _ranked(_that_run(manifest, candidates(manifest, asked, where), "auto", where), asked.names)


def candidates(manifest: Manifest, asked: DeviceRequest, where: str) -> tuple[Variant, ...]:
    """The variants that need only the devices among which AUTO or MULTI may choose."""
    refuse_unknown(manifest, (*asked.names, *asked.excluded), where)
    named = asked.names
    fitting = tuple(
        v
        for v in manifest.choices
        if (not named or all(_place(d, named) is not None for d in v.devices))
        and all(_place(d, asked.excluded) is None for d in v.devices)
    )
    if not fitting:
        raise no_variant(manifest, ",".join((*named, *(f"-{name}" for name in asked.excluded))), where)
    return fitting


def _without_native(manifest: Manifest, asked: DeviceRequest, where: str) -> Selection:
    unsafe = [v for v in manifest.choices if any(map(holds_native_code, manifest.with_shapes(v)))]
    native = [device_list(v) or v.name for v in unsafe]
    refused_names = {v.name for v in unsafe}
    harmless = tuple(v for v in manifest.variants if (v.shapes_of or v.name) not in refused_names)
    try:
        if harmless:
            found = select_variants(manifest.model_copy(update={"variants": harmless}), asked, where)
            passed = tuple(f"the variant for {name} holds native code, which is not allowed" for name in native)
            return replaced(found, passed=(*passed, *found.passed) if found.how != "asked" else ())
        refused: HeteroccError | None = None
    except UnknownDeviceError as error:
        select_variants(manifest, asked, where)  # raises if no variant matches, with native code or without
        refused = error
    raise NativeCodeError(
        "the bundle holds native code, which allow_native=False forbids"
        if refused is None
        else f"the variant for {asked.text} holds native code, which allow_native=False forbids",
        where=where,
        hint="compile the model with "
        + Hint('devices="ORT"', "--devices ORT")
        + ", or load it without allow_native=False if you trust its origin",
    ) from refused


def holds_native_code(variant: Variant) -> bool:
    """Return whether loading a variant runs the bundle's code: a shared object, which includes the GPU code."""
    return any(p.kind != "onnx" or p.binaries is not None for p in variant.partitions)


def _asked(manifest: Manifest, wanted: list[str], where: str) -> Selection:
    fitting, remark = match_variants(manifest.choices, wanted)
    if not fitting:
        raise no_variant(manifest, ",".join(wanted), where)
    if len(fitting) > 1 and all(_same_devices(v, fitting[0]) for v in fitting):
        # They differ in the CPU that their code is for; the bundle has the best first.
        able = _that_run(manifest, fitting, "asked", where).variants
        return Selection("asked", able[:1], remark=remark)
    if len(fitting) > 1:
        raise UnknownDeviceError(
            f"more than one variant of the bundle matches {','.join(wanted)}",
            where=where,
            hint="name one: " + "; ".join(_shown(v) for v in fitting),
        )
    (found,) = fitting
    reasons = reasons_against(manifest, found)
    if reasons:
        raise IncompatibleBundleError(
            f"the variant for {device_list(found)} cannot run here: {'; '.join(reasons)}",
            where=where,
            hint=_instead(manifest, reasons),
        )
    return Selection("asked", (found,), remark=remark)


def _instead(manifest: Manifest, reasons: Sequence[str]) -> str:
    """The hint for a requested variant that cannot run for these reasons."""
    able = [v for v in manifest.choices if not reasons_against(manifest, v)]
    if able:
        found = f"the variant for {device_list(able[0])} can run here"
        return Hint(f"load it without `devices`: {found}", f"leave out --devices: {found}")
    return _remedy(manifest, reasons)


def _remedy(manifest: Manifest, reasons: Sequence[str]) -> str:
    """The hint if no variant can run."""
    said = " ".join(reasons)
    series = ".".join((manifest.producer.tvm or "").split(".")[:2])
    if "TVM's runtime libraries" in said:
        return REINSTALL
    if series and "compiled with TVM" in said:
        return f"compile the model again, or install the release of heterocc-runtime that runs code of TVM {series}"
    if "onnxruntime" in said:
        return "pip install onnxruntime"
    return "no variant of the bundle can run here: compile the model on this machine, or for its devices"


def _that_run(manifest: Manifest, variants: Sequence[Variant], how: How, where: str) -> Selection:
    able: list[Variant] = []
    refused: list[tuple[Variant, str]] = []
    for variant in variants:
        reasons = reasons_against(manifest, variant)
        if reasons:
            refused.append((variant, f"the variant for {shown(variant)} cannot run here: {'; '.join(reasons)}"))
        else:
            able.append(variant)
    # The same devices with code for another CPU are not worth a remark.
    passed = [why for variant, why in refused if not any(_same_devices(variant, other) for other in able)]
    if not able:
        scope = "no variant of the bundle" if len(variants) == len(manifest.choices) else "none of those variants"
        raise IncompatibleBundleError(f"{scope} can run here", where=where, hint=" | ".join(passed))
    return Selection(how, tuple(able), tuple(passed))


def _same_devices(one: Variant, other: Variant) -> bool:
    """Whether two variants of one bundle are for the same devices, but for different CPUs."""
    if not any(d.settings.cpu is not None for d in one.devices):
        return False
    return [(d.name, d.backend, d.index) for d in one.devices] == [(d.name, d.backend, d.index) for d in other.devices]


def _ranked(selection: Selection, wanted: Sequence[str]) -> Selection:
    """The variants by the rank of their first device, then by the order of `wanted`, then by that of the bundle."""

    def key(variant: Variant) -> tuple[bool, tuple[bool, bool, int], int]:
        first = first_device(variant)
        here = device_here(first)
        kind = rank(computes=_precisions(variant) <= here.dtypes, present=True, unit=here.unit, software=here.software)
        return first.backend == "ort", kind, _place(first, wanted) or 0

    return Selection("auto", tuple(sorted(selection.variants, key=key)), selection.passed)


def _precisions(variant: Variant) -> frozenset[str]:
    """The floating-point dtypes in which the variant computes, according to the manifest."""
    if first_device(variant).settings.precision == "f16":
        return frozenset(["float16"])
    return _FLOATS.intersection(v.dtype for v in variant.values)


def first_device(variant: Variant) -> Device:
    """The device by which a variant is ranked; the CPU for a variant without devices."""
    return variant.devices[0] if variant.devices else Device(name="CPU", backend="cpu")


def _first_device(variant: Variant) -> str:
    """A description of that device."""
    first = first_device(variant)
    here = device_here(first)
    text = f"{here.description}, {kind_text(here.unit, software=here.software)}"
    precision = first.settings.precision
    return text if precision == "f32" else f"{text}, computing in {precision}"


def _place(device: Device, wanted: Sequence[str]) -> int | None:
    """The position of the first name in a list that matches a device, or None."""
    return next((i for i, name in enumerate(wanted) if answers(device, name)), None)


def refuse_unknown(manifest: Manifest, wanted: Sequence[str], where: str) -> None:
    """Refuse names that are neither a known device nor in the bundle; one list may serve several bundles."""
    own = {d.name.upper() for v in manifest.variants for d in v.devices}
    for name in wanted:
        if name.upper() not in own and not re.fullmatch(_KNOWN, name.upper()):
            raise UnknownDeviceError(
                f"AUTO cannot choose '{name}', which is not a device" if name else "AUTO: has an empty name",
                where=where,
                hint="write AUTO, AUTO:VULKAN,CPU, AUTO:-CPU or MULTI:GPU,CPU",
            )


def no_variant(manifest: Manifest, wanted: str, where: str) -> UnknownDeviceError:
    """The error for a list that no variant matches."""
    have = "; ".join(_shown(v) for v in manifest.choices)
    return UnknownDeviceError(
        f"the bundle has no variant for {wanted or 'no device'}", where=where, hint=f"it has variants for: {have}"
    )


def _shown(variant: Variant) -> str:
    """A variant for messages: its devices, and its name if that differs."""
    listed = shown(variant)
    return listed if listed.upper() == variant.name.upper() else f"{listed} ({variant.name})"


def choose_threads(variant: Variant, asked: int | None) -> tuple[Options, tuple[str, ...]]:
    """The number of threads for CPU partitions, and remarks if it is less than requested.

    The caller's number comes first, then the compile's property `CPU.threads`, then all cores of the process's affinity
    mask. Raises UsageError for a number that is not positive or too large.
    """
    if asked is not None and (type(asked) is not int or not 1 <= asked <= _MAX_INT):
        shown = repr(asked) if type(asked) is int and abs(asked) < 10**9 else f"a {type(asked).__name__}"
        raise UsageError(
            f"threads must be a positive number below 2^31, not {shown}", hint="leave it out for all cores"
        )
    wish = asked
    if wish is None:
        for device in variant.devices:
            if device.backend in ("cpu", "ort") and device.settings.threads is not None:
                wish = device.settings.threads
                break
    count = max_threads() if wish is None else wish
    # The limit also holds for ONNX Runtime: 1,024 of its threads on two cores take a minute to start.
    if count > max_threads():
        remark = (
            f"{count} threads were requested, {max_threads()} are used: this process may use {available_cores()} cores"
        )
        return Options(max_threads()), (f"{remark} (TVM_NUM_THREADS raises the limit)", *_alone(max_threads()))
    return Options(count), _alone(count)


def _alone(threads: int) -> tuple[str, ...]:
    """A remark if the parallel loops of CPU code run on one thread although more are available."""
    problem = cpu_api.problem() if threads > 1 else None
    return () if problem is None else (f"CPU partitions run on one thread: {problem}",)
