"""Loading and running of bundles: `load` and `Session`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, overload

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.files.source import Source
from heterocc.artifacts.manifest import Variant
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.weights.verify import Verification
from heterocc.runtime import forks
from heterocc.runtime.asynchronous import Asynchronous
from heterocc.runtime.binding import Binding, StatefulBinding, require_names
from heterocc.runtime.feeds import Array, Feed, TensorInfo, Tensors
from heterocc.runtime.inspected import Inspected
from heterocc.runtime.loading.changing import Changing
from heterocc.runtime.loading.loaded import Results
from heterocc.runtime.loading.runners import Notes, open_runner
from heterocc.runtime.requests.limits import Aim, check_aim, check_requests, request_limit, threads_for
from heterocc.runtime.select.opening import LoadOptions
from heterocc.runtime.select.request import parse_request

if TYPE_CHECKING:
    from types import TracebackType

    from heterocc.artifacts.signing.keys import AnyKey


def load(
    path: Source,
    devices: str | Sequence[str] | None = None,
    *,
    threads: int | None = None,
    requests: int | None = None,
    hint: Aim | None = None,
    start: str | None = None,
    fallback: bool = False,
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
    replacement. `""` is AUTO, `"AUTO:-CPU"` excludes a device, and `"HETERO:GPU,CPU"` is `"GPU,CPU"`.

    `"MULTI:GPU,CPU"` loads a variant for each device and spreads the requests over them; if a device fails, its request
    is repeated on another. With AUTO, `start="CPU"` loads that variant first and answers on it while another thread
    loads the better one, and then switches. `fallback=True` goes on with the bundle's next variant, once and with a
    warning, if a device is lost during a run (DeviceLostError). docs/requests.md has the rules of all three.

    `threads` is the number of threads for the CPU partitions of one run; the default is the compile's `CPU.threads`,
    or else the number of cores that this process may use. `profile` measures times (see Session.profile), as does the
    compile's property `profile=on` of any device.

    `requests` is the number of requests of `run_async`, `stream` and `astream` that run at the same time; by default
    the cores divided by `threads`, and at least one more than the variant has devices, if it needs others than the CPU;
    with MULTI it applies to each variant. `hint` sets the defaults of both: "latency" (all cores for one request) or
    "throughput" (one thread for each of as many requests as there are cores).

    Loading a bundle with compiled code is equivalent to running a program. `allow_native=False` accepts only variants
    without compiled code, that is, partitions in ONNX. `expect_digest` is the required SHA-256 of the bundle's manifest
    (`Bundle.digest`), which covers the whole content. With `trusted_keys` one of these Ed25519 keys must have signed
    the bundle, which is verified before the manifest is parsed: files of public keys, as `heterocc keygen` writes them,
    directories of `.pub` files, or texts `ed25519:…`. A service sets `require_signature=True`: without `trusted_keys`
    the file or directory in the environment variable `HETEROCC_TRUSTED_KEYS` is used, and without both nothing is
    loaded. Signatures need the package cryptography (the extra `sign`).

    `load` checks the manifest and all code. Background threads hash the weights, and then make those that code reads in
    another layout. The first run waits for them; `verify="load"` waits for the hashes here.

    The file stays mapped, so a bundle must be replaced by renaming a new file over it. If it is overwritten or
    truncated in place, the next run raises BundleChangedError; a run in progress, or one less than a millisecond
    after one, may return wrong results or crash the process. `copy=True` first reads the whole file into private memory
    of this process (as many bytes as the file has), and later changes of the file have no effect.

    Raises FileMissingError, UsageError, KeyFileError, MissingPackageError, BundleError and its kinds
    (IncompatibleBundleError, NativeCodeError, UntrustedBundleError, SignatureError), UnknownDeviceError, DeviceError.
    """
    if verify not in ("background", "load"):
        raise UsageError(f"verify must be 'background' or 'load', not {verify!r}")
    bundle = open_bundle(
        path, copy=copy, expect_digest=expect_digest, trusted_keys=trusted_keys, require_signature=require_signature
    )
    try:
        session = Session(
            bundle,
            devices,
            threads=threads,
            requests=requests,
            hint=hint,
            start=start,
            fallback=fallback,
            profile=profile,
            allow_native=allow_native,
        )
    except BaseException:
        bundle.close()
        raise
    try:
        # After loading, so that hashing does not compete with it for cores.
        session._start_background(bundle.start_verification())
        if verify == "load":
            session.wait_verified()
    except BaseException:
        session.close()  # waits for a thread that loads, before the bundle is closed
        raise
    return session


class Session(Asynchronous, Inspected):
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
    handlers that libraries registered. Requests of the parent that are not done at the fork are not done in the child:
    their futures raise DeviceError there.
    """

    def __init__(
        self,
        bundle: Bundle,
        devices: str | Sequence[str] | None = None,
        *,
        threads: int | None = None,
        requests: int | None = None,
        hint: Aim | None = None,
        start: str | None = None,
        fallback: bool = False,
        profile: bool = False,
        allow_native: bool = True,
    ) -> None:
        """Use `load` instead, if possible. The session owns `bundle` and closes it."""
        check_aim(hint)
        check_requests(requests)
        options = LoadOptions(threads_for(hint, threads), profile, allow_native)
        self._bundle = bundle
        self._said = Notes(bundle.path)
        self._queues = {}
        asked = parse_request(devices)
        self._runner, notes = open_runner(bundle, asked, options, self._said.add, start=start, fallback=fallback)
        self._said.put_first(notes)
        self._limits = tuple(
            request_limit(m.variant, m.alive().pool.chain.options.threads, requests, hint, changes=start is not None)
            for m in self._members
        )

    # ---- properties -----------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> Tensors:
        """The model's inputs, in its order and by name, with the sizes that dynamic dimensions may have."""
        return Tensors(self._loaded.inputs)

    @property
    def outputs(self) -> Tensors:
        """The model's outputs, in its order and by name.

        Dimensions that differ by the shapes of the inputs are names or None.
        """
        return Tensors(self._loaded.outputs)

    @property
    def classes(self) -> Mapping[str, tuple[str | int, ...]]:
        """Names of classes by output, for a bundle without ONNX Runtime.

        An output of labels has numbers of these names, one of scores a column for each.
        """
        return MappingProxyType(self._bundle.manifest.model.classes)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the choice of the variant, and on later changes."""
        return self._said.all

    @property
    def variant(self) -> Variant:
        """The manifest record of the variant that runs; of those for several shapes, that of the last run.

        With MULTI, that of the first device.
        """
        return self._loaded.last_variant

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The records of the variants for all shapes on the chosen devices; `run` uses the one that fits its inputs.

        With MULTI, those of all devices.
        """
        return tuple(variant for member in self._members for variant in member.variants)

    @property
    def devices(self) -> tuple[str, ...]:
        """The labels of the variant's devices, as given to the compile; of several variants, all, each once."""
        return tuple(dict.fromkeys(name for member in self._members for name in member.devices))

    @property
    def replaceable(self) -> Tensors:
        """Constants of the model that a run may give as inputs, too, which ONNX Runtime computes then.

        Other initializers with a value of their own are `inputs`, which a run may leave out.
        """
        record = self._bundle.manifest.replacing
        return Tensors(() if record is None else map(TensorInfo.of, record.inputs))

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
        return sum(member.allocations.count for member in self._members)

    @property
    def allocated_bytes(self) -> int:
        """The total size of those allocations in bytes, without mapped weights."""
        return sum(member.allocations.nbytes for member in self._members)

    def __repr__(self) -> str:
        state = "closed " if self._runner.closed else ""
        ins = ", ".join(str(i) for i in self.inputs)
        outs = ", ".join(str(o) for o in self.outputs)
        parts = len(self._loaded.variant.partitions)
        return (
            f"<{state}Session of '{self._bundle.manifest.model.name}' on {','.join(self.devices)} "
            f"({parts} partition{'s' * (parts != 1)}): ({ins}) -> ({outs})>"
        )

    def _repr_html_(self) -> str:
        """The session's inputs, outputs and partitions as a table, which notebooks show."""
        from heterocc.runtime.notebook import session_html

        return session_html(repr(self), self.inputs, self.outputs, self.variant)

    # ---- running --------------------------------------------------------------------------------------------------

    @overload
    def run(self, feed: Feed, /, *, out: Mapping[str, Array] | None = None) -> Results: ...
    @overload
    def run(self, output_names: Sequence[str] | None, feed: Feed, /) -> list[Any]: ...

    def run(self, first: Any, second: Any = None, /, *, out: Mapping[str, Array] | None = None) -> Any:
        """Run the model. `run({name: array})` returns `{name: array}`; ONNX Runtime's `run(output_names, feed)` a list.

        In place of a mapping, a feed may be the array of the only input, or a list of arrays in the order of `inputs`.
        Inputs must have exactly the model's dtype and shape, in any memory layout. Results are new arrays, except for
        the outputs that `out` has arrays for: these arrays are written and returned, and their contents are undefined
        if the run fails. If only the run knows an output's size, and the array has another one, the run fails with
        FeedError at its end. `output_names` None means all. CPU code reads large inputs and writes large results in
        place; the arrays must not be changed during a run.

        Raises FeedError before anything runs, BundleHashError if weights are damaged, BundleChangedError if the file
        was changed in place, InputValueError that names a node that cannot compute with the values of the inputs, and
        DeviceError or DeviceMemoryError that names the partition and the device; for shapes that were not used before,
        the errors of `load`.
        """
        if second is not None:
            return self._runner.run_list(first, second)
        return self._runner.run(first, out)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the model on arrays in the order of `inputs`, or by their names: `session(a, b)`, `session(a=a, b=b)`.

        A mapping is taken, too, as by `run`. Returns the array of the only output, or a tuple of arrays in the order of
        `outputs`. Raises as `run` does.
        """
        feed: Feed = inputs
        if named:
            if inputs:
                raise UsageError("inputs are given in their order or by name, not both", where="session(…)")
            feed = named
        elif len(inputs) == 1 and isinstance(inputs[0], Mapping):
            feed = inputs[0]
        results = tuple(self._runner.run(feed, None).values())
        return results[0] if len(results) == 1 else results

    def wait_verified(self) -> None:
        """Wait until the SHA-256 of every weight is checked. Raises BundleHashError if one differs."""
        self._alive().runs.wait_verified()

    def wait_switched(self, timeout: float | None = None) -> bool:
        """Wait until the loading that `start` leaves to another thread has ended, well or not; `notes` say which.

        Returns False if `timeout`, in seconds, was over before.
        """
        return not isinstance(self._runner, Changing) or self._runner.wait_switched(timeout)

    def _start_background(self, verification: Verification) -> None:
        """Make the layouts of weights that code reads, and load a better variant, on other threads, as `load` does."""
        for member in self._members:
            member.alive().pool.chain.arranging.start(verification)
        if isinstance(self._runner, Changing):
            self._runner.begin()

    @overload
    def bind(self, shapes: Mapping[str, Sequence[int]] | None = None, *, replacing: Sequence[str] = ()) -> Binding: ...
    @overload
    def bind(self, shapes: None = None, *, state: Mapping[str, str]) -> StatefulBinding: ...

    def bind(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        *,
        state: Mapping[str, str] | None = None,
        replacing: Sequence[str] = (),
    ) -> Binding | StatefulBinding:
        """Return a new Binding: arrays over the session's memory for inputs and outputs.

        Of a bundle for several shapes, `shapes` by input selects one; the default is the first. `replacing` names
        constants of `Session.replaceable` that are inputs of the binding, too, which runs in ONNX Runtime then.

        `state={"past.0.key": "present.0.key", …}` returns a StatefulBinding instead: a run reads, for each of these
        inputs, what the last run wrote to the output. It takes inputs of any shapes that `run` takes.

        Raises FeedError, and UsageError if two of the three are given.
        """
        for given, what in ((shapes, "shapes"), (state, "states")):
            if given is not None:
                require_names(given, what, self._bundle.path)
        if state is not None:
            if shapes is not None or replacing:
                other = "shapes" if shapes is not None else "constants to replace"
                hint = "runs with a state take inputs of any shape, and constants by their names"
                raise UsageError(f"bind takes either {other} or a state", hint=hint)
            self._alive()
            return StatefulBinding(self._runner.run, self.inputs, self.outputs, state, self._bundle.path)
        return self._using(lambda loaded: loaded.bind(self._alive, shapes, replacing))

    # ---- closing --------------------------------------------------------------------------------------------------

    def close(self, *, cancel: bool = False) -> None:
        """Finish the accepted requests, then free code, buffers and the mapping.

        Runs in progress finish; later ones raise UsageError. `cancel` cancels the requests that wait, instead of
        finishing them; so does a `with` block that an exception leaves, and a call from a future's callback. Either
        way every future is done when the call returns, except those that other callbacks hold up.

        In a forked child that cannot use the session, its memory is freed when the process ends.
        """
        queue = self._queues.get(forks.generation)
        if queue is not None:
            queue.close(cancel=cancel)
        self._runner.close()
        self._bundle.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=kind is not None)
