"""Opens bundles and runs them: `load` and `Session`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from heterocc.artifacts.closing import Closing
from heterocc.artifacts.errors import DeviceError, FeedError, HeteroccError, UsageError
from heterocc.artifacts.manifest import TensorSpec, Variant
from heterocc.artifacts.reader import Bundle, open_bundle
from heterocc.artifacts.source import Source
from heterocc.runtime import forks
from heterocc.runtime.binding import Binding
from heterocc.runtime.execute.chain import Context
from heterocc.runtime.execute.cuda_streams import device_keeper
from heterocc.runtime.execute.direct import go_home, write_to
from heterocc.runtime.execute.faults import offer
from heterocc.runtime.execute.loaded_code import close_unloaded
from heterocc.runtime.execute.ort import to_python
from heterocc.runtime.feeds import Array, FeedCheck, TensorInfo, check_out, nearest
from heterocc.runtime.pool import ContextPool
from heterocc.runtime.profile.profile import Profile, build_profile
from heterocc.runtime.profile.recorder import Recorder
from heterocc.runtime.profile.trace import Tap, TraceCallback
from heterocc.runtime.select.opening import open_variant
from heterocc.runtime.select.select import others_here

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
    """Open a bundle and make it ready to run; bytes or a file that is open for reading bytes will do for its path.

    `devices` names a variant by its devices, `"CPU"` or `["GPU", "CPU"]`, or by its name (the rules:
    `heterocc.runtime.select.matching.match_variants`). None takes the first that can run on
    this machine, `"AUTO"` the one on the most capable device (discrete GPU, integrated GPU, CPU, software device; the
    variant's first device counts), `"AUTO:VULKAN,CPU"` the same of those on these devices alone. Where None or AUTO
    meets a variant that fails to load, the next is tried; `Session.notes` and the log say so. A named variant is loaded
    or fails.

    `threads` is how many threads a running caller's CPU partitions use: by default the compile's `CPU.threads`, else
    every core this process may use. `profile` takes times (see Session.profile); the compile's property `profile=on` of
    any device does so too.

    Loading a bundle with compiled code is running a program. `allow_native=False` takes only variants that stay ONNX;
    `expect_digest` is the SHA-256 of the manifest that the bundle must have (`Bundle.digest`), which stands for all of
    its content.

    The manifest and all code are checked here. Weights are hashed by background threads, and no run begins before they
    are found right; `verify="load"` waits for that here.

    The file stays mapped, so a bundle must be replaced by renaming another to its name. One that is overwritten or cut
    short in place is noticed before the next run, which raises BundleChangedError; during a run it may give wrong
    results or end the process. `copy=True` reads the whole file into memory of this process first (as many bytes as the
    file has, not shared with other processes), and nothing done to the file later matters.

    Raises FileMissingError, UsageError, BundleError and its kinds (IncompatibleBundleError, NativeCodeError),
    UnknownDeviceError, DeviceError.
    """
    if verify not in ("background", "load"):
        raise UsageError(f"verify must be 'background' or 'load', not {verify!r}")
    bundle = open_bundle(path, copy=copy, expect_digest=expect_digest)
    try:
        session = Session(bundle, devices, threads=threads, profile=profile, allow_native=allow_native)
        # Only now, so that hashing does not take the cores from loading.
        bundle.start_verification()
        if verify == "load":
            session.wait_verified()
        return session
    except BaseException:
        bundle.close()
        raise


class Session(Closing):
    """A loaded bundle. Any number of threads may call `run` at the same time; each call has a context of its own.

    Contexts (VM instances and buffers) are made when needed and kept: after as many runs as there were ever callers at
    once, nothing more is allocated but the arrays that `run` returns, and with `out=` or `bind` not even those. A run
    that fails takes its context with it and leaves the session usable.

    Threads: with `threads=1` CPU partitions run on the calling thread, and no other is started. With more, idle threads
    of one pool help the caller, up to `threads` in all; all sessions of the process share the pool, which has as many
    workers as the largest session asked for, less one. ONNX Runtime's partitions have `threads - 1` workers each, for
    all callers. A service with many callers wants `threads=1`: its callers then use all cores without waiting for each
    other.

    After a fork, a session of CPU partitions goes on in the child, and so does one with ONNX Runtime's if `threads` is
    1. Others raise DeviceError there: load the bundle in the child. A driver that the parent has used cannot be used in
    the child at all. If the fork interrupted a run or a load of another thread, the child can neither run nor load.
    A child of a process that had drivers or ONNX Runtime ends without the exit handlers that libraries had registered.
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
        """Prefer `load`. The session owns `bundle` and closes it."""
        with forks.working(bundle.path):
            opened = open_variant(bundle, devices, threads=threads, profile=profile, allow_native=allow_native)
        self.notes = opened.notes
        variant, model = opened.variant, bundle.manifest.model
        self._bundle = bundle
        self._variant = variant
        self._in_specs = _named(variant, variant.inputs, [t.name for t in model.inputs])
        self._out_specs = _named(variant, variant.outputs, [t.name for t in model.outputs])
        self._check = FeedCheck(self._in_specs, bundle.path)
        self._verified = False
        self._generation = forks.generation
        self._portable = opened.pool.chain.portable
        self._allocations = opened.pool.chain.allocations
        self._pool: ContextPool | None = opened.pool

    # ---- what it is ---------------------------------------------------------------------------------------------

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
        """Labels of the variant's devices, as they were given to the compile."""
        return tuple(d.name for d in self._variant.devices)

    @property
    def bundle(self) -> Bundle:
        """The open bundle."""
        return self._bundle

    @property
    def threads(self) -> int:
        """Threads that CPU partitions of one run use."""
        return self._alive().chain.options.threads

    @property
    def allocations(self) -> int:
        """How many times the session has allocated tensor memory so far (arenas, device buffers, copied weights)."""
        return self._allocations.count

    @property
    def allocated_bytes(self) -> int:
        """Bytes of those allocations together; mapped weights are not among them."""
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

    # ---- running ------------------------------------------------------------------------------------------------

    @overload
    def run(self, feed: Feed, /, *, out: Mapping[str, Array] | None = None) -> Results: ...
    @overload
    def run(self, output_names: Sequence[str] | None, feed: Feed, /) -> list[Any]: ...

    def run(self, first: Any, second: Any = None, /, *, out: Mapping[str, Array] | None = None) -> Any:
        """Run the model: `run({name: array})` gives `{name: array}`; ONNX Runtime's `run(output_names, feed)` a list.

        Inputs must have the model's dtype and shape exactly; arrays in any memory layout are accepted. Results are new
        arrays, save those that `out` gives arrays for: these are written and returned, and hold no defined values after
        a run that fails. `output_names` None means all. CPU code reads large inputs and writes large results in place:
        arrays must not change while a run is under way.

        Raises FeedError before anything runs; BundleHashError when the weights turn out damaged, BundleChangedError
        when the file was changed in place; DeviceError or DeviceMemoryError naming the partition and the device.
        """
        if second is not None:
            return self._run_list(first, second)
        arrays, targets = self._check(first), self._targets(out)
        results = self._run(arrays, range(len(self._out_specs)), targets)
        return {s.name: result for s, result in zip(self._out_specs, results, strict=True)}

    def wait_verified(self) -> None:
        """Wait until every weight's SHA-256 is checked; raises BundleHashError if one differs."""
        if not self._verified:
            self._bundle.verify_weights()
            self._verified = True

    def bind(self) -> Binding:
        """Arrays of the session's own memory to write inputs into and read outputs from; see Binding."""
        pool, variant = self._alive(), self._variant
        with forks.working(self._bundle.path):
            inputs = zip(self.inputs, variant.inputs, strict=True)
            outputs = zip(self.outputs, variant.outputs, strict=True)
            return Binding(pool.new(), inputs, outputs, self._alive, self._run_on)

    # ---- looking inside -----------------------------------------------------------------------------------------

    def profile(self) -> Profile:
        """Times per partition, kernel and transfer, averaged over all runs so far; needs `load(..., profile=True)`."""
        pool = self._alive()
        if pool.timestamps is None:
            raise UsageError(
                "this session does not profile", hint="load it with profile=True: load(path, profile=True)"
            )
        return build_profile(self._variant, pool.chain.schedule, pool.recorders, pool.timestamps)

    def clear_profile(self) -> None:
        """Forget the runs profiled so far, such as a first one that warms up; no run may be under way."""
        for recorder in self._alive().recorders:
            recorder.clear()

    def run_traced(self, feed: Feed) -> Results:
        """Run once and return every value that crosses a partition's border, by the variant's value names.

        Nothing is reused: inputs, outputs, constants and values between partitions are all copies.
        """
        chain = self._alive().chain
        with forks.working(self._bundle.path):
            context = Context(chain, reuse=False)
        self._run_on(context, self._check(feed))
        return {self._variant.values[v].name: value for v, value in context.values().items()}

    def trace_kernels(self, feed: Feed, callback: TraceCallback, partition: int | str | None = None) -> None:
        """Run once and call `callback` after every kernel of `partition` (name or number; None: all), in run order."""
        chain = self._alive().chain
        names = [p.name for p in self._variant.partitions]
        if isinstance(partition, str):
            if partition not in names:
                raise UsageError(f"no partition is called '{partition}'", hint=nearest(partition, names))
            partition = names.index(partition)
        tap = Tap(self._variant, chain.schedule, partition, callback)
        arrays = self._check(feed)
        try:
            self._run_on(Context(chain, observer=tap), arrays)
        except HeteroccError:
            if tap.error is not None:
                raise tap.error from None
            raise

    def kernel_binaries(self) -> dict[str, bytes]:
        """What drivers made of the kernels, by partition: what a bundle may hold beside the code (OpenCL's, so far).

        Drivers that compile for the sizes of a launch have it complete after a run. May take as long as compiling.
        """
        chain = self._alive().chain
        with forks.working(self._bundle.path):
            found = {e.name: e.binaries() for e in chain.compiled.values()}
        return {name: data for name, data in found.items() if data}

    # ---- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free code, buffers and the mapping; runs that are under way finish. A closed session runs no more.

        In a forked child that cannot go on with the session, its memory goes with the process.
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

    # ---- the inside of a run ------------------------------------------------------------------------------------

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
                "this process was forked from the one that loaded the session, whose threads and drivers are not here",
                f"{self._bundle.path}, on {','.join(self.devices)}",
            )
        self._generation = forks.generation

    def _run(self, arrays: Sequence[Any], wanted: Sequence[int], targets: Mapping[str, Array]) -> list[Any]:
        """Run on a context of the pool, and give the outputs of these numbers; one that fails does not go back."""
        pool = self._alive()
        context = pool.take()
        direct = self._place_results(context, arrays, wanted, targets) if context.direct else {}
        self._run_on(context, arrays)
        results = [
            direct[i] if i in direct else self._result(context, i, targets.get(self._out_specs[i].name)) for i in wanted
        ]
        context.objects.clear()
        go_home(context.direct)
        pool.give_back(context)
        return results

    def _place_results(
        self, context: Context, arrays: Sequence[Any], wanted: Sequence[int], targets: Mapping[str, Array]
    ) -> dict[int, Array]:
        """The results that code writes where they are to be, by output."""
        placed: dict[int, Array] = {}
        for i in wanted:
            direct = context.direct.get(self._variant.outputs[i])
            target = targets.get(self._out_specs[i].name)
            if direct is None or i in placed:
                continue
            if target is None:
                placed[i] = direct.result()
            elif write_to(direct, target, [*arrays, *placed.values()]):
                placed[i] = target
        return placed

    def _run_on(self, context: Context, arrays: Sequence[Any]) -> None:
        if not self._verified:
            self.wait_verified()
        entered = forks.enter()
        try:
            self._feed_and_execute(context, arrays)
        finally:
            if entered:
                forks.leave()

    def _feed_and_execute(self, context: Context, arrays: Sequence[Any]) -> None:
        self._bundle.check_unchanged()
        for value, array in zip(self._variant.inputs, arrays, strict=False):
            direct = context.direct.get(value)
            if direct is not None and direct.move(array):
                continue
            place = context.buffers.arrays.get(value)
            if place is None:
                context.objects[value] = array
            else:
                np.copyto(place, array)
        try:
            context.execute()
        except DeviceError as error:
            offer(error, self.devices, others_here(self._bundle.manifest, self._variant))
            raise
        if isinstance(context.observer, Recorder):
            context.observer.runs += 1

    def _run_list(self, names: Sequence[str] | None, feed: Feed) -> list[Any]:
        known = [s.name for s in self._out_specs]
        for name in names or ():
            if name not in known:
                raise FeedError(f"no output is called '{name}'", where=self._bundle.path, hint=nearest(name, known))
        wanted = range(len(known)) if names is None else [known.index(name) for name in names]
        arrays = self._check(feed)
        return self._run(arrays, wanted, {})

    def _targets(self, out: Mapping[str, Array] | None) -> Mapping[str, Array]:
        if not out:
            return {}
        specs = {s.name: s for s in self._out_specs}
        for name, array in out.items():
            if name not in specs:
                raise FeedError(f"no output is called '{name}'", where=self._bundle.path, hint=nearest(name, specs))
            check_out(name, array, specs[name], self._bundle.path)
        return out

    def _result(self, context: Context, index: int, target: Array | None) -> Any:
        value = self._variant.outputs[index]
        array = context.arrays.get(value)
        if array is None:
            return to_python(context.objects[value])
        if target is None:
            return array.copy()
        np.copyto(target, array)
        return target


def _named(variant: Variant, values: Sequence[int], names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """The variant's specs under the model's own names."""
    return tuple(variant.values[v].model_copy(update={"name": n}) for v, n in zip(values, names, strict=True))
