"""Chooses which variant of a bundle runs here, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterocc.artifacts.errors import IncompatibleBundleError, UnknownDeviceError, UsageError
from heterocc.artifacts.manifest import Manifest, Variant
from heterocc.runtime.chain import Options
from heterocc.runtime.compat import host, why_not
from heterocc.runtime.devices import driver_reason
from heterocc.runtime.tvm_api import available_cores, max_threads


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant to run; `notes` say what was chosen and why, `warnings` are those a user must see."""

    variant: Variant
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def labels(variant: Variant) -> tuple[str, ...]:
    """The variant's device labels, as `--devices` had them."""
    return tuple(d.name for d in variant.devices)


def choose_variant(manifest: Manifest, devices: str | Sequence[str] | None, where: str) -> Choice:
    """The variant on `devices`, or the first that can run here.

    Raises UnknownDeviceError if no variant is for `devices`, IncompatibleBundleError if none (or not that one) can run.
    """
    if devices is None:
        return _first_that_runs(manifest, where)
    wanted = [part.strip() for part in devices.split(",")] if isinstance(devices, str) else list(devices)
    found = _matching(manifest.variants, wanted)
    if found is None:
        have = "; ".join(",".join(labels(v)) for v in manifest.variants)
        raise UnknownDeviceError(
            f"the bundle has no variant for {','.join(wanted) or 'no device'}",
            where=where,
            hint=f"it has variants for: {have}",
        )
    reasons = why_not(found, manifest.producer, host(), driver_reason)
    if reasons:
        raise IncompatibleBundleError(
            f"the variant for {','.join(labels(found))} cannot run here: {'; '.join(reasons)}",
            where=where,
            hint="load it without `devices` to take the first variant that can run",
        )
    return Choice(found, (f"runs on {','.join(labels(found))}, as asked",))


def _first_that_runs(manifest: Manifest, where: str) -> Choice:
    passed: list[str] = []
    for variant in manifest.variants:
        reasons = why_not(variant, manifest.producer, host(), driver_reason)
        name = ",".join(labels(variant))
        if not reasons:
            notes = (f"runs on {name}",) if not passed else (*passed, f"runs on {name} instead")
            return Choice(variant, notes, notes if passed else ())
        passed.append(f"the variant for {name} cannot run here: {'; '.join(reasons)}")
    raise IncompatibleBundleError(
        "no variant of the bundle can run here",
        where=where,
        hint=" | ".join(passed),
    )


def _matching(variants: Sequence[Variant], wanted: Sequence[str]) -> Variant | None:
    for same in (lambda have: have == list(wanted), lambda have: sorted(have) == sorted(wanted)):
        for variant in variants:
            if same(list(labels(variant))):
                return variant
    return None


def choose_threads(variant: Variant, asked: int | None) -> tuple[Options, tuple[str, ...]]:
    """Threads for CPU partitions, and remarks where less than was asked can be had.

    The caller's word, then the compile's property `CPU.threads`, then all cores of the process's affinity mask.
    """
    if asked is not None and (not isinstance(asked, int) or asked < 1):
        raise UsageError(f"threads must be a positive number, not {asked!r}")
    wish = asked
    if wish is None:
        for device in variant.devices:
            text = device.properties.get("threads", "")
            if device.backend in ("cpu", "ort") and text.isdigit() and int(text) > 0:
                wish = int(text)
                break
    count = max_threads() if wish is None else wish
    compiled = any(p.kind == "tvm" for p in variant.partitions)
    if compiled and count > max_threads():
        remark = (
            f"{count} threads were asked for, {max_threads()} are used: this process may use {available_cores()} cores"
        )
        return Options(max_threads()), (f"{remark} (TVM_NUM_THREADS raises the limit)",)
    return Options(count), ()
