"""Loading of the first variant of a bundle that can be loaded, with the reasons against others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import DeviceError, HeteroccError, note_text
from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import Variant
from heterocc.runtime.execute.chain import Chain, Options
from heterocc.runtime.execute.cuda_streams import device_keeper
from heterocc.runtime.execute.executable import synchronizer
from heterocc.runtime.execute.faults import any_device_lost, device_fault, offer
from heterocc.runtime.execute.memory import Allocations
from heterocc.runtime.execute.tvm_api import release_pools, tvm_api
from heterocc.runtime.plan.steps import Space
from heterocc.runtime.pool import ContextPool
from heterocc.runtime.select.request import DeviceRequest
from heterocc.runtime.select.select import Selection, choose_threads, labels, others_here, select_variants, shown


@frozen
class Opened:
    """A loaded variant, with notes on how it was chosen."""

    variant: Variant
    pool: ContextPool
    notes: tuple[str, ...]


@frozen
class LoadOptions:
    """Options of `load` that concern each variant: threads of CPU code, measured times, compiled code."""

    threads: int | None = None
    profile: bool = False
    allow_native: bool = True


def open_variant(bundle: Bundle, asked: DeviceRequest, options: LoadOptions) -> Opened:
    """Load the variant that is asked for. Raises the errors of `select_variants` and `open_first`."""
    selection = select_variants(bundle.manifest, asked, bundle.path, allow_native=options.allow_native)
    return open_first(bundle, selection, options)


def open_first(bundle: Bundle, selection: Selection, options: LoadOptions) -> Opened:
    """Load the first variant of a selection; if a device fails, the next.

    The memory of a failed variant is freed before the next is loaded. If a single variant fails, its error is raised;
    if several fail, a DeviceError (of their class, if they have the same) that lists each with its reason.
    """
    failed: list[str] = []
    kinds: set[type[DeviceError]] = set()
    for variant in selection.variants:
        try:
            with device_keeper(variant)():
                pool, remarks = _load(bundle, variant, options)
        except DeviceError as error:
            if len(selection.variants) + len(selection.passed) == 1:
                offer(error, labels(variant), others_here(bundle.manifest, variant))
                raise
            # The text alone is kept: the exception holds the frames, and they hold what was loaded.
            failed.append(f"the variant for {shown(variant)} cannot be loaded: {error.message} ({error.code})")
            kinds.add(type(error))
        else:
            notes = _notes(bundle, selection, variant, failed, remarks)
            return Opened(variant, pool, (*notes, *map(note_text, pool.chain.notes)))
        _free_unused(variant)
    kind = kinds.pop() if len(kinds) == 1 else DeviceError
    raise kind(
        "no variant of the bundle can be loaded here",
        where=bundle.path,
        hint=" | ".join((*selection.passed, *failed)),
    )


def open_further(bundle: Bundle, variant: Variant, beside: Sequence[Chain], *, profile: bool) -> ContextPool:
    """Load a variant for further shapes beside those that are loaded. Raises DeviceError or DeviceMemoryError."""
    first = beside[0]
    try:
        with device_keeper(variant)():
            return _contexts(bundle, variant, first.options, first.allocations, beside, profile=profile)
    except DeviceError as error:
        offer(error, labels(variant), others_here(bundle.manifest, first.variant))
        raise


def _load(bundle: Bundle, variant: Variant, options: LoadOptions) -> tuple[ContextPool, tuple[str, ...]]:
    chosen, remarks = choose_threads(variant, options.threads)
    return _contexts(bundle, variant, chosen, Allocations(), (), profile=options.profile), remarks


def _contexts(
    bundle: Bundle,
    variant: Variant,
    options: Options,
    allocations: Allocations,
    beside: Sequence[Chain],
    *,
    profile: bool,
) -> ContextPool:
    if any_device_lost():
        _forget_lost(variant)
    profiling = profile or any(d.settings.profile for d in variant.devices)
    pool = ContextPool(Chain(bundle, variant, options, allocations, beside), profiling=profiling)
    for space in dict.fromkeys(pool.chain.schedule.spaces):
        _wait(space)
    return pool


def _forget_lost(variant: Variant) -> None:
    """Wait for this thread's earlier work on the devices: its loss by another thread must not fail this load."""
    for device in variant.devices:
        if device.backend in ("opencl", "vulkan"):
            wait = synchronizer(Space(device.backend, device.index))
            with suppress(Exception):
                assert wait is not None
                wait()


def _wait(space: Space) -> None:
    """Wait for a device's queued work, such as uploads of weights, so that its failure is raised by the load."""
    wait = synchronizer(space)
    if wait is not None:
        try:
            wait()
        except Exception as error:
            raise device_fault(error, "uploading weights", str(space)) from error


def _notes(
    bundle: Bundle, selection: Selection, variant: Variant, failed: Sequence[str], remarks: Sequence[str]
) -> tuple[str, ...]:
    """The session's notes; warnings among them are logged too."""
    chosen = selection.note(variant)
    # Skipping variants is what AUTO is for; without `devices` the first variant is expected.
    surprising = [*(selection.passed if selection.how == "first" else ()), *failed]
    if surprising:
        chosen += " instead"
        surprising.append(chosen)
    warning = bundle.manifest.faults_warning()
    simulated = () if warning is None else (warning,)
    for note in (*simulated, *surprising, *remarks):
        import logging  # as in runners.py

        logging.getLogger("heterocc.runtime").warning("%s: %s", bundle.path, note_text(note))
    return tuple(map(note_text, (*simulated, *selection.passed, *failed, chosen, *remarks)))


def _free_unused(variant: Variant) -> None:
    """Free the memory that allocators keep for reuse: no other variant may use the devices of a failed one."""
    with suppress(HeteroccError):  # no runtime, no driver: nothing is kept
        tvm_api()
        release_pools()
    from heterocc.runtime.native import opencl_api, vulkan_api

    trims = {"opencl": opencl_api.trim, "vulkan": vulkan_api.trim}
    for backend in {d.backend for d in variant.devices} & trims.keys():
        with suppress(HeteroccError):
            trims[backend]()
