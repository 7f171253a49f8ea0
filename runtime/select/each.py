"""The choice of several variants of a bundle, one for each device of `MULTI`."""

from __future__ import annotations

from heterocc.artifacts.errors import HeteroccError, IncompatibleBundleError, NativeCodeError, UnknownDeviceError
from heterocc.artifacts.frozen import replaced
from heterocc.artifacts.manifest import Manifest
from heterocc.runtime.select.matching import answers, match_variants
from heterocc.runtime.select.request import DeviceRequest, named
from heterocc.runtime.select.select import Selection, first_device, no_variant, refuse_unknown, select_variants


def select_each(
    manifest: Manifest, asked: DeviceRequest, where: str, *, allow_native: bool = True
) -> tuple[tuple[Selection, ...], tuple[str, ...]]:
    """The variants of `MULTI` or `MULTI:GPU,CPU` that can run, each a Selection, and notes on names without one.

    Each name selects the variant that matches it alone, or else the first whose first device has the name: for a
    bundle of `GPU,CPU` and `CPU`, the names `GPU,CPU` select both. `MULTI` alone selects the best variant for each
    first device. Raises the errors of `select_variants` if no variant can run.
    """
    if not asked.names:
        every = select_variants(manifest, asked.without_names, where, allow_native=allow_native)
        best = {(first_device(v).backend, first_device(v).index): v for v in reversed(every.variants)}
        chosen = [v for v in every.variants if v in best.values()]
        return tuple(Selection("multi", (v,)) for v in chosen), every.passed
    refuse_unknown(manifest, (*asked.names, *asked.excluded), where)
    found: list[Selection] = []
    notes: list[str] = []
    error: HeteroccError | None = None
    for name in asked.names:
        if any(_plain_name(name) == _plain_name(away) for away in asked.excluded):
            continue
        try:
            one = select_variants(manifest, named(_alone_or_first(manifest, name)), where, allow_native=allow_native)
        except (UnknownDeviceError, IncompatibleBundleError, NativeCodeError) as refusal:
            error = error or refusal
            notes.append(f"MULTI skipped {name}: {refusal.message}")
        else:
            if all(one.variants[0] is not other.variants[0] for other in found):
                found.append(replaced(one, how="multi", remark=None))
    if found:
        return tuple(found), tuple(notes)
    raise error or no_variant(manifest, ",".join(asked.names), where)


def _plain_name(name: str) -> str:
    return name.upper().removesuffix(".0")


def _alone_or_first(manifest: Manifest, name: str) -> str:
    """The name, or if no variant matches it alone, the name of the first variant whose first device has it."""
    if match_variants(manifest.choices, [name])[0]:
        return name
    return next((v.name for v in manifest.choices if answers(first_device(v), name)), name)
