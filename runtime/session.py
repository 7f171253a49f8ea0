"""Loading and running of bundles: `load` and `Session`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from heterocc.artifacts.errors import FeedError, HeteroccError, UsageError
from heterocc.artifacts.files.closing import Closing
from heterocc.artifacts.files.source import Source
from heterocc.artifacts.manifest import TensorSpec, Variant
from heterocc.artifacts.reader import Bundle, open_bundle
from heterocc.artifacts.verify import Verification
from heterocc.runtime import forks
from heterocc.runtime.binding import Binding
from heterocc.runtime.execute.chain import Context
from heterocc.runtime.execute.cuda_streams import device_keeper
from heterocc.runtime.execute.loaded_code import close_unloaded
from heterocc.runtime.feeds import Array, FeedCheck, TensorInfo, check_out, nearest
from heterocc.runtime.pool import ContextPool
from heterocc.runtime.profile.profile import Profile, build_profile
from heterocc.runtime.profile.trace import Tap, TraceCallback
from heterocc.runtime.runs import Runs
from heterocc.runtime.select.opening import open_variant

Feed = Mapping[str, Any]
Results = dict[str, Any]


def load(
    path: Source,
    devices: str | Sequence[str] | None = None,
    *,
    threads: int | None = None,
    profile: bool = False,
    verify: Literal["background", "load"] = "background",
    copy: bool = False,
    allow_native: bool = True,
    expect_digest: str | None = None,
) -> Session:
    """Open a bundle and prepare it for running. Instead of its path, bytes or an open binary file are accepted.

    `devices` selects a variant by its devices, `"CPU"` or `["GPU", "CPU"]`, or by its name; the rules are in
    `heterocc.runtime.select.matching.match_variants`. None selects the first variant that can run on this machine.
    `"AUTO"` selects the one with the most capable first device (discrete GPU, integrated GPU, CPU, software device),
    and `"AUTO:VULKAN,CPU"` does so among the variants that need only these devices. If a variant selected by None or
    AUTO fails to load, the next is loaded, with a note in `Session.notes` and the log. A named variant has no
    replacement.

    `threads` is the number of threads for the CPU partitions of one run; the default is the compile's `CPU.threads`,
    or else the number of cores that this process may use. `profile` measures times (see Session.profile), as does the
    compile's property `profile=on` of any device.

    Loading a bundle with compiled code is equivalent to running a program. `allow_native=False` accepts only variants
    without compiled code, that is, partitions in ONNX. `expect_digest` is the required SHA-256 of the bundle's manifest
    (`Bundle.digest`), which covers the whole content.

    `load` checks the manifest and all code. Background threads hash the weights, and then make those that code reads in
    another layout. The first run waits for them; `verify="load"` waits for the hashes here.

    The file stays mapped, so a bundle must be replaced by renaming a new file over it. If it is overwritten or
    truncated in place, the next run raises BundleChangedError; a run in progress may return wrong results or crash the
    process. `copy=True` first reads the whole file into private memory of this process (as many bytes as the file has),
    and later changes of the file have no effect.

    Raises FileMissingError, UsageError, BundleError and its kinds (IncompatibleBundleError, NativeCodeError),
    UnknownDeviceError, DeviceError.
    """
    if verify not in ("background", "load"):
        raise UsageError(f"verify must be 'background' or 'load', not {verify!r}")
    bundle = open_bundle(path, copy=copy, expect_digest=expect_digest)
    try:
        session = Session(bundle, devices, threads=threads, profile=profile, allow_native=allow_native)
        # After loading, so that hashing does not compete with it for cores.
        session._start_arranging(bundle.start_verification())
        if verify == "load":
            session.wait_verified()
        return session
    except BaseException:
        bundle.close()
        raise


class Session(Closing):
    """A loaded bundle. Any number of threads may call `run` at the same time; each call uses its own context.

    Contexts (VM instances and buffers) are created on demand, one for each concurrent call, and reused. Further runs
    allocate only the arrays that `run` returns, and with `out=` or `bind` not even those. A run that fails discards its
    context; the session remains usable.

    Threads: with `threads=1`, CPU partitions run on the calling thread, and no other is started. Otherwise idle threads
    of a pool help the caller, up to `threads` in all. All sessions of the process share the pool; its number of workers
    is the largest `threads` of a session, less one. Each partition of ONNX Runtime has `threads - 1` workers, shared by
    all callers. `threads=1` is best for a service with many callers, which then use all cores without waiting for each
    other.

    After a fork, a session with CPU partitions only remains usable in the child, as does one with partitions of ONNX
    Runtime if `threads` is 1. Other sessions raise DeviceError there; load the bundle in the child instead. A driver
    that the parent has used cannot be used in the child. If the fork interrupted a run or a load in another thread, the
    child can neither run nor load. If the parent used drivers or ONNX Runtime, the child exits without the exit
    handlers that libraries registered.
    """

    def __init__(
        self,
        bundle: Bundle,
        devices: str | Sequence[str] | None = None,
        *,
        threads: int | None = None,
        profile: bool = False,
        allow_native: bool = True,
    ) -> None:
        """Use `load` instead, if possible. The session owns `bundle` and closes it."""
        with forks.working(bundle.path):
            opened = open_variant(bundle, devices, threads=threads, profile=profile, allow_native=allow_native)
        self.notes = opened.notes
        variant, model = opened.variant, bundle.manifest.model
        self._bundle = bundle
        self._variant = variant
        self._in_specs = _named(variant, variant.inputs, [t.name for t in model.inputs])
        self._out_specs = _named(variant, variant.outputs, [t.name for t in model.outputs])
        self._out_names = tuple(enumerate(s.name for s in self._out_specs))
        self._check = FeedCheck(self._in_specs, bundle.path)
        self._runs = Runs(bundle, variant, [s.name for s in self._out_specs])
        self._generation = forks.generation
        self._portable = opened.pool.chain.portable
        self._allocations = opened.pool.chain.allocations
        self._pool: ContextPool | None = opened.pool

    # ---- properties -----------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The model's inputs, in its order."""
        return tuple(TensorInfo.of(s) for s in self._in_specs)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The model's outputs, in its order."""
        return tuple(TensorInfo.of(s) for s in self._out_specs)

    @property
    def variant(self) -> Variant:
        """The manifest record of the variant that runs."""
        return self._variant

    @property
    def devices(self) -> tuple[str, ...]:
        """The labels of the variant's devices, as given to the compile."""
        return tuple(d.name for d in self._variant.devices)

    @property
    def bundle(self) -> Bundle:
        """The open bundle."""
        return self._bundle

    @property
    def threads(self) -> int:
        """The number of threads for the CPU partitions of one run."""
        return self._alive().chain.options.threads

    @property
    def allocations(self) -> int:
        """The number of allocations of tensor memory so far (arenas, device buffers, copied weights)."""
        return self._allocations.count

    @property
    def allocated_bytes(self) -> int:
        """The total size of those allocations in bytes, without mapped weights."""
        return self._allocations.nbytes

    def __repr__(self) -> str:
        state = "closed " if self._pool is None else ""
        ins = ", ".join(str(i) for i in self.inputs)
        outs = ", ".join(str(o) for o in self.outputs)
        parts = len(self._variant.partitions)
        return (
            f"<{state}Session of '{self._bundle.manifest.model.name}' on {','.join(self.devices)} "
            f"({parts} partition{'s' * (parts != 1)}): ({ins}) -> ({outs})>"
        )

    # ---- running --------------------------------------------------------------------------------------------------

    @overload
    def run(self, feed: Feed, /, *, out: Mapping[str, Array] | None = None) -> Results: ...
    @overload
    def run(self, output_names: Sequence[str] | None, feed: Feed, /) -> list[Any]: ...

    def run(self, first: Any, second: Any = None, /, *, out: Mapping[str, Array] | None = None) -> Any:
        """Run the model. `run({name: array})` returns `{name: array}`; ONNX Runtime's `run(output_names, feed)` a list.

        Inputs must have exactly the model's dtype and shape, in any memory layout. Results are new arrays, except for
        the outputs that `out` has arrays for: these arrays are written and returned, and their contents are undefined
        if the run fails. `output_names` None means all. CPU code reads large inputs and writes large results in place;
        the arrays must not be changed during a run.

        Raises FeedError before anything runs, BundleHashError if weights are damaged, BundleChangedError if the file
        was changed in place, and DeviceError or DeviceMemoryError that names the partition and the device.
        """
        if second is not None:
            return self._run_list(first, second)
        arrays, targets = self._check(first), self._targets(out)
        results = self._runs.run(self._alive(), arrays, range(len(self._out_specs)), targets)
        return {name: results[number] for number, name in self._out_names}

    def wait_verified(self) -> None:
        """Wait until the SHA-256 of every weight is checked. Raises BundleHashError if one differs."""
        self._runs.wait_verified()

    def _start_arranging(self, verification: Verification) -> None:
        """Make the layouts of weights that code reads in the background, as `load` does. The first run waits for it."""
        self._alive().chain.arranging.start(verification)

    def bind(self) -> Binding:
        """Return a new Binding: arrays over the session's memory for inputs and outputs."""
        pool, variant = self._alive(), self._variant
        with forks.working(self._bundle.path):
            inputs = zip(self.inputs, variant.inputs, strict=True)
            outputs = zip(self.outputs, variant.outputs, strict=True)
            return Binding(pool.new(), inputs, outputs, self._alive, self._runs.run_on)

    # ---- looking inside -------------------------------------------------------------------------------------------

    def profile(self) -> Profile:
        """The times of partitions, kernels and transfers, averaged over all runs so far.

        Raises UsageError unless the bundle was loaded with `profile=True`.
        """
        pool = self._alive()
        if pool.timestamps is None:
            raise UsageError(
                "this session does not profile", hint="load the bundle with profile=True: load(path, profile=True)"
            )
        return build_profile(self._variant, pool.chain.schedule, pool.recorders, pool.timestamps)

    def clear_profile(self) -> None:
        """Discard the times of all runs so far, such as a warm-up. No run may be in progress."""
        for recorder in self._alive().recorders:
            recorder.clear()

    def run_traced(self, feed: Feed) -> Results:
        """Run once and return every value at a partition's boundary, by the variant's value names.

        Inputs, outputs, constants and values between partitions are all copies.
        """
        chain = self._alive().chain
        with forks.working(self._bundle.path):
            context = Context(chain, reuse=False)
        self._runs.run_on(context, self._check(feed))
        return {self._variant.values[v].name: value for v, value in context.values().items()}

    def trace_kernels(self, feed: Feed, callback: TraceCallback, partition: int | str | None = None) -> None:
        """Run once and call `callback` after every kernel of `partition` (name or number; None: all), in run order."""
        chain = self._alive().chain
        names = [p.name for p in self._variant.partitions]
        if isinstance(partition, str):
            if partition not in names:
                raise UsageError(f"the variant has no partition '{partition}'", hint=nearest(partition, names))
            partition = names.index(partition)
        tap = Tap(self._variant, chain.schedule, partition, callback)
        arrays = self._check(feed)
        try:
            self._runs.run_on(Context(chain, observer=tap), arrays)
        except HeteroccError:
            if tap.error is not None:
                raise tap.error from None
            raise

    def kernel_binaries(self) -> dict[str, bytes]:
        """The drivers' binaries of the kernels, by partition, which a bundle may hold beside the code (OpenCL only).

        They are complete after a run, because some drivers compile for the sizes of a launch. May take as long as
        compiling.
        """
        chain = self._alive().chain
        with forks.working(self._bundle.path):
            found = {e.name: e.binaries() for e in chain.compiled.values()}
        return {name: data for name, data in found.items() if data}

    # ---- closing --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free code, buffers and the mapping. Runs in progress finish; later ones raise UsageError.

        In a forked child that cannot use the session, its memory is freed when the process ends.
        """
        pool, self._pool = self._pool, None
        here = self._generation == forks.generation or (self._portable and not forks.interrupted())
        if pool is not None and here:
            entered = forks.enter()
            try:
                with device_keeper(self._variant)():
                    pool.close()
                    del pool  # and with it the weights
                close_unloaded()
            finally:
                if entered:
                    forks.leave()
        self._bundle.close()

    # ---- steps of a run -------------------------------------------------------------------------------------------

    def _alive(self) -> ContextPool:
        if self._pool is None:
            raise UsageError("the session is closed", where=self._bundle.path)
        if self._generation != forks.generation:
            self._go_on_in_child()
        return self._pool

    def _go_on_in_child(self) -> None:
        forks.check_interrupted(self._bundle.path)
        if not self._portable:
            raise forks.refusal(
                "this process was forked from the one that loaded the session, and lacks its threads and drivers",
                f"{self._bundle.path}, on {','.join(self.devices)}",
            )
        self._generation = forks.generation

    def _run_list(self, names: Sequence[str] | None, feed: Feed) -> list[Any]:
        known = [s.name for s in self._out_specs]
        for name in names or ():
            if name not in known:
                raise FeedError(f"the model has no output '{name}'", where=self._bundle.path, hint=nearest(name, known))
        wanted = range(len(known)) if names is None else [known.index(name) for name in names]
        arrays = self._check(feed)
        return self._runs.run(self._alive(), arrays, wanted, {})

    def _targets(self, out: Mapping[str, Array] | None) -> Mapping[str, Array]:
        if not out:
            return {}
        specs = {s.name: s for s in self._out_specs}
        for name, array in out.items():
            if name not in specs:
                raise FeedError(f"the model has no output '{name}'", where=self._bundle.path, hint=nearest(name, specs))
            check_out(name, array, specs[name], self._bundle.path)
        return out


def _named(variant: Variant, values: Sequence[int], names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """The variant's specs under the model's names."""
    return tuple(variant.values[v].model_copy(update={"name": n}) for v, n in zip(values, names, strict=True))
