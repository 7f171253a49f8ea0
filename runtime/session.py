"""Loading and running of bundles: `load` and `Session`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import FeedError, HeteroccError, UsageError
from heterocc.artifacts.files.closing import Closing
from heterocc.artifacts.files.source import Source
from heterocc.artifacts.manifest import Variant
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.verify import Verification
from heterocc.runtime import forks
from heterocc.runtime.binding import Binding
from heterocc.runtime.execute.chain import Context
from heterocc.runtime.execute.cuda_streams import device_keeper
from heterocc.runtime.execute.loaded_code import close_unloaded
from heterocc.runtime.feeds import Array, FeedCheck, TensorInfo, check_out, nearest
from heterocc.runtime.select.opening import open_variant
from heterocc.runtime.shapes import Ready, ShapeVariants, named
from heterocc.runtime.sizes import input_places

if TYPE_CHECKING:  # imported when they are used: most sessions neither profile nor trace
    from heterocc.artifacts.signing.keys import AnyKey
    from heterocc.runtime.profile.profile import Profile
    from heterocc.runtime.profile.trace import TraceCallback

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
    trusted_keys: AnyKey | Sequence[AnyKey] | None = None,
    require_signature: bool = False,
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
    (`Bundle.digest`), which covers the whole content. With `trusted_keys` one of these Ed25519 keys must have signed
    the bundle, which is verified before the manifest is parsed: files of public keys, as `heterocc keygen` writes them,
    directories of `.pub` files, or texts `ed25519:…`. A service sets `require_signature=True`: without `trusted_keys`
    the file or directory in the environment variable `HETEROCC_TRUSTED_KEYS` is used, and without both nothing is
    loaded. Signatures need the package cryptography (`pip install 'heterocc[sign]'`).

    `load` checks the manifest and all code. Background threads hash the weights, and then make those that code reads in
    another layout. The first run waits for them; `verify="load"` waits for the hashes here.

    The file stays mapped, so a bundle must be replaced by renaming a new file over it. If it is overwritten or
    truncated in place, the next run raises BundleChangedError; a run in progress may return wrong results or crash the
    process. `copy=True` first reads the whole file into private memory of this process (as many bytes as the file has),
    and later changes of the file have no effect.

    Raises FileMissingError, UsageError, KeyFileError, MissingPackageError, BundleError and its kinds
    (IncompatibleBundleError, NativeCodeError, UntrustedBundleError, SignatureError), UnknownDeviceError, DeviceError.
    """
    if verify not in ("background", "load"):
        raise UsageError(f"verify must be 'background' or 'load', not {verify!r}")
    bundle = open_bundle(
        path, copy=copy, expect_digest=expect_digest, trusted_keys=trusted_keys, require_signature=require_signature
    )
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

    A bundle may have code for several shapes of inputs, and for dynamic dimensions: `run` uses what fits its inputs,
    code for fixed shapes first. It is loaded when a run first needs it; the weights in memory are shared.

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
        first = Ready.of(bundle, variant, opened.pool)
        self._outputs = tuple(map(TensorInfo.of, first.outputs))
        group = bundle.manifest.with_shapes(variant)
        self._inputs = tuple(
            TensorInfo.of_input(spec, input_places(group, place, declared.shape))
            for place, (spec, declared) in enumerate(
                zip(named(variant, variant.inputs, [t.name for t in model.inputs]), model.inputs, strict=True)
            )
        )
        self._output_names = tuple(t.name for t in model.outputs)
        self._check = FeedCheck(self._inputs, bundle.path)
        self._shapes: ShapeVariants | None = None
        if len(group) > 1:
            self._shapes = ShapeVariants(bundle, first, self._inputs, profile=profile)
            self._outputs = tuple(map(TensorInfo.of, model.outputs))
        self._generation = forks.generation
        self._allocations = opened.pool.chain.allocations
        self._variants = group
        self._first: Ready | None = first
        self._last: Ready | None = first

    # ---- properties -----------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The model's inputs, in its order, with the sizes that dynamic dimensions may have."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The model's outputs, in its order; dimensions that differ by the shapes of the inputs are names or None."""
        return self._outputs

    @property
    def variant(self) -> Variant:
        """The manifest record of the variant that runs; of those for several shapes, that of the last run."""
        last = self._last
        return self._variant if last is None else last.variant

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The records of the variants for all shapes on the chosen devices; `run` uses the one that fits its inputs."""
        return self._variants

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
        return self._alive().pool.chain.options.threads

    @property
    def allocations(self) -> int:
        """The number of allocations of tensor memory so far (arenas, device buffers, copied weights)."""
        return self._allocations.count

    @property
    def allocated_bytes(self) -> int:
        """The total size of those allocations in bytes, without mapped weights."""
        return self._allocations.nbytes

    def __repr__(self) -> str:
        state = "closed " if self._first is None else ""
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
        was changed in place, and DeviceError or DeviceMemoryError that names the partition and the device; for shapes
        that were not used before, the errors of `load`.
        """
        if second is not None:
            return self._run_list(first, second)
        arrays = self._check(first)
        ready = self._alive() if self._shapes is None else self._fitting(arrays)
        names = self._output_names
        results = ready.runs.run(ready.pool, arrays, range(len(names)), self._targets(ready, out) if out else {})
        return dict(zip(names, results, strict=True))

    def wait_verified(self) -> None:
        """Wait until the SHA-256 of every weight is checked. Raises BundleHashError if one differs."""
        self._alive().runs.wait_verified()

    def _start_arranging(self, verification: Verification) -> None:
        """Make the layouts of weights that code reads in the background, as `load` does. The first run waits for it."""
        self._alive().pool.chain.arranging.start(verification)

    def bind(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Binding:
        """Return a new Binding: arrays over the session's memory for inputs and outputs.

        Of a bundle for several shapes, `shapes` by input selects one; the default is the first.
        """
        ready = self._matching(shapes)
        with forks.working(self._bundle.path):
            variant = ready.variant
            inputs = zip(self.inputs, variant.inputs, strict=True)
            outputs = zip(self.outputs, variant.outputs, strict=True)
            return Binding(ready.pool.new(), inputs, outputs, self._alive, ready.runs.run_on)

    # ---- looking inside -------------------------------------------------------------------------------------------

    def profile(self) -> Profile:
        """The times of partitions, kernels and transfers, averaged over all runs so far.

        Of a bundle for several shapes, it covers the variant of the last run. Raises UsageError unless the bundle was
        loaded with `profile=True`.
        """
        ready = self._last or self._alive()
        pool = ready.pool
        if pool.timestamps is None:
            raise UsageError(
                "this session does not profile", hint="load the bundle with profile=True: load(path, profile=True)"
            )
        from heterocc.runtime.profile.profile import build_profile

        return build_profile(ready.variant, pool.chain.schedule, pool.recorders, pool.timestamps)

    def clear_profile(self) -> None:
        """Discard the times of all runs so far, such as a warm-up. No run may be in progress."""
        for ready in self._all_ready(self._alive()):
            for recorder in ready.pool.recorders:
                recorder.clear()

    def run_traced(self, feed: Feed) -> Results:
        """Run once and return every value at a partition's boundary, by the variant's value names.

        Inputs, outputs, constants and values between partitions are all copies.
        """
        arrays = self._check(feed)
        ready = self._fitting(arrays)
        with forks.working(self._bundle.path):
            context = Context(ready.pool.chain, reuse=False)
        ready.runs.run_on(context, arrays)
        return {ready.variant.values[v].name: value for v, value in context.values().items()}

    def trace_kernels(self, feed: Feed, callback: TraceCallback, partition: int | str | None = None) -> None:
        """Run once and call `callback` after every kernel of `partition` (name or number; None: all), in run order."""
        arrays = self._check(feed)
        ready = self._fitting(arrays)
        chain = ready.pool.chain
        names = [p.name for p in ready.variant.partitions]
        if isinstance(partition, str):
            if partition not in names:
                raise UsageError(f"the variant has no partition '{partition}'", hint=nearest(partition, names))
            partition = names.index(partition)
        from heterocc.runtime.profile.trace import Tap

        tap = Tap(ready.variant, chain.schedule, partition, callback)
        try:
            ready.runs.run_on(Context(chain, observer=tap), arrays)
        except HeteroccError:
            if tap.error is not None:
                raise tap.error from None
            raise

    def kernel_binaries(self) -> dict[str, bytes]:
        """The drivers' binaries of the kernels, by partition, which a bundle may hold beside the code (OpenCL only).

        They are complete after a run, because some drivers compile for the sizes of a launch. May take as long as
        compiling.
        """
        chain = self._alive().pool.chain
        with forks.working(self._bundle.path):
            found = {e.name: e.binaries() for e in chain.compiled.values()}
        return {name: data for name, data in found.items() if data}

    # ---- closing --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free code, buffers and the mapping. Runs in progress finish; later ones raise UsageError.

        In a forked child that cannot use the session, its memory is freed when the process ends.
        """
        first, self._first, self._last = self._first, None, None
        every = () if first is None else self._all_ready(first)
        here = self._generation == forks.generation or (_portable(every) and not forks.interrupted())
        if self._shapes is not None:
            self._shapes.forget()
        if every and here:
            entered = forks.enter()
            try:
                with device_keeper(self._variant)():
                    for ready in every:
                        ready.pool.close()
                    del first, every, ready  # and with them the weights
                close_unloaded()
            finally:
                if entered:
                    forks.leave()
        self._bundle.close()

    # ---- steps of a run -------------------------------------------------------------------------------------------

    def _alive(self) -> Ready:
        first = self._first
        if first is None:
            raise UsageError("the session is closed", where=self._bundle.path)
        if self._generation != forks.generation:
            self._go_on_in_child(first)
        return first

    def _go_on_in_child(self, first: Ready) -> None:
        forks.check_interrupted(self._bundle.path)
        if not _portable(self._all_ready(first)):
            raise forks.refusal(
                "this process was forked from the one that loaded the session, and lacks its threads and drivers",
                f"{self._bundle.path}, on {','.join(self.devices)}",
            )
        self._generation = forks.generation

    def _all_ready(self, first: Ready) -> tuple[Ready, ...]:
        return (first,) if self._shapes is None else self._shapes.ready

    def _fitting(self, arrays: Sequence[Any]) -> Ready:
        """The variant for the shapes of checked inputs."""
        found = self._alive()
        if self._shapes is not None:
            self._last = found = self._shapes.of(arrays)
        return found

    def _matching(self, shapes: Mapping[str, Sequence[int]] | None) -> Ready:
        first = self._alive()
        if not shapes:
            return first
        variants = self._shapes or ShapeVariants(self._bundle, first, self._inputs, profile=False)
        return variants.matching(shapes)

    def _run_list(self, names: Sequence[str] | None, feed: Feed) -> list[Any]:
        known = self._output_names
        for name in names or ():
            if name not in known:
                raise FeedError(f"the model has no output '{name}'", where=self._bundle.path, hint=nearest(name, known))
        wanted = range(len(known)) if names is None else [known.index(name) for name in names]
        arrays = self._check(feed)
        ready = self._fitting(arrays)
        return ready.runs.run(ready.pool, arrays, wanted, {})

    def _targets(self, ready: Ready, out: Mapping[str, Array]) -> Mapping[str, Array]:
        specs = {s.name: s for s in ready.outputs}
        for name, array in out.items():
            if name not in specs:
                raise FeedError(f"the model has no output '{name}'", where=self._bundle.path, hint=nearest(name, specs))
            check_out(name, array, specs[name], self._bundle.path)
        return out


def _portable(every: Sequence[Ready]) -> bool:
    return all(ready.pool.chain.portable for ready in every)
