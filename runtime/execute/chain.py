"""A variant, loaded: its code, its weights, and contexts that each run the whole chain on one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.dtypes import COMPUTED, NARROW, container, is_text
from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import Layout, Partition, Variant
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime import forks
from heterocc.runtime.execute.arranging import Arranging
from heterocc.runtime.execute.cuda_streams import CudaStreams, device_keeper, hold
from heterocc.runtime.execute.direct import direct_values
from heterocc.runtime.execute.dynamic.in_memory import call_on_objects
from heterocc.runtime.execute.dynamic.on_device import DynamicValues, call_on_device
from heterocc.runtime.execute.executable import (
    Executable,
    Instrument,
    Library,
    load_library,
    origin_notes,
    synchronizer,
)
from heterocc.runtime.execute.faults import device_fault, take_device_loss
from heterocc.runtime.execute.inflight import InFlight, Settle
from heterocc.runtime.execute.lending import Lending, copying_notes
from heterocc.runtime.execute.loaded_code import close_unloaded, keep_open, let_go
from heterocc.runtime.execute.memory import Allocations, Buffers, Weights, host_tensor, to_host
from heterocc.runtime.execute.ort import OrtPartition, to_python
from heterocc.runtime.execute.transfer import bind_copy, bind_mark, direct_pairs, shared_spaces
from heterocc.runtime.execute.tvm_api import release_pools
from heterocc.runtime.feeds import Array
from heterocc.runtime.native import cpu_api
from heterocc.runtime.native.cpu_runner import Run
from heterocc.runtime.plan.schedule import HOST, Call, Copy, Schedule, Space, Step, Wait, numpy_dtype, schedule

Action = Callable[[], Any]


class Observer(Protocol):
    """The receiver of an observed context's reports: profiling or bisection."""

    def instrument(self, partition: int) -> Instrument | None:
        """The hook for the partition's kernels, or None to leave them alone."""
        ...

    def wrap(self, step: Step, action: Action, wait: Action | None) -> Action:
        """The action to run in place of `action`; `wait` blocks until the step's device is done."""
        ...


@frozen
class Options:
    """Options of a chain: `threads` for CPU partitions, per running caller."""

    threads: int


class Chain:
    """Code and weights of a variant, placed on its devices; immutable once built, shared by all contexts."""

    def __init__(
        self,
        bundle: Bundle,
        variant: Variant,
        options: Options,
        allocations: Allocations,
        beside: Sequence[Chain] = (),
    ) -> None:
        """`beside` are chains of the same bundle for other shapes, which share weights with this one."""
        self.variant = variant
        self.options = options
        on_device = any(device.backend not in ("cpu", "ort") for device in variant.devices)
        has_onnx = any(part.kind == "onnx" for part in variant.partitions)
        self.portable = not on_device and not (has_onnx and options.threads > 1)
        """Whether a forked child may go on with it: it keeps no threads and no driver's objects."""
        forks.keep_in_children(self, portable=self.portable)
        self.schedule: Schedule = schedule(variant, shared_spaces(variant), direct_pairs(variant))
        self.allocations = allocations
        sharing: Weights | None = next((c.weights for c in beside if c.schedule.shared == self.schedule.shared), None)
        self.weights: Weights = sharing or Weights(bundle.weights_view, allocations, self.schedule.shared)
        arranged: list[Arranging] = [chain.arranging for chain in beside]
        self.arranging: Arranging = Arranging(
            self._kept_layouts(), self.weights.array, options.threads, allocations, arranged
        )
        self.compiled: dict[int, Executable] = {}
        self.onnx: dict[int, OrtPartition] = {}
        if sharing is None and any(space.backend == "cuda" for space in self.schedule.spaces):
            hold(self.weights, self.weights.tensors)
        self._bundle = bundle
        close_unloaded()  # code of chains that were not closed
        self._libraries: dict[str, Library] = {}
        # TVM's pools may hold memory of a lost device, whoever lost it, and would hand it to this chain.
        if take_device_loss() or any(s.backend in ("opencl", "vulkan") for s in self.schedule.spaces):
            release_pools()
        if any(p.kind == "onnx" and p.params for p in variant.partitions):
            bundle.verify_weights()  # ONNX Runtime folds constants, that is, it computes with them, at load
        for index, part in enumerate(variant.partitions):
            if part.kind == "tvm":
                self.compiled[index] = self._load_compiled(part, self.schedule.spaces[index])
            else:
                self.onnx[index] = self._load_onnx(part)
        self.constants = {int(value): weight for value, weight in variant.constants.items()}
        for value, space in self.schedule.residents:
            if space != HOST or (self.compiled and variant.values[value].dtype in COMPUTED):
                self.weights.tensor(self.constants[value], space)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the origin of code and on transfers of values."""
        return (*origin_notes(self._libraries.values()), *copying_notes(self.schedule))

    def _load_compiled(self, part: Partition, space: Space) -> Executable:
        if part.sequences:
            cpu_api.add_sequence_functions()
        params = [self._param(part, place, space) for place in range(len(part.params))]
        library = self._libraries.get(part.code)
        if library is None:
            library = self._load_library(part, space)
            self._libraries[part.code] = library
        keeps = self._keeps_denormals(part)
        return Executable(library.module, part.name, part.entry, space, params, keeps_denormals=keeps)

    def _keeps_denormals(self, part: Partition) -> bool:
        return self.variant.devices[part.device].settings.denormals

    def _kept_layouts(self) -> dict[tuple[int, Layout], None]:
        """The weights in other layouts that code reads in host memory."""
        return {
            (part.params[int(place)], layout): None
            for part, space in zip(self.variant.partitions, self.schedule.spaces, strict=True)
            if self.weights.in_place(space)
            for place, layout in part.layouts.items()
        }

    def _param(self, part: Partition, place: int, space: Space) -> Any:
        """A weight of a partition, in the layout in which its code reads it."""
        index, layout = part.params[place], part.layouts.get(str(place))
        if layout is None:
            return self.weights.tensor(index, space)
        if space == HOST:
            return host_tensor(self.arranging.array(index, layout))
        return self.weights.placed((index, layout), space, lambda: self.arranging.now(index, layout))

    def _load_library(self, part: Partition, space: Space) -> Library:
        binaries = self._binaries(part, space)
        code = self._bundle.sealed_member(part.code)
        try:
            library = load_library(code.path, part.name, space, binaries, self.options.threads)
        except BaseException:
            let_go(code)
            raise
        keep_open(code, library)
        return library

    def _binaries(self, part: Partition, space: Space) -> bytes:
        if part.binaries is None or space.backend != "opencl":
            return b""
        with self._bundle.sealed_member(part.binaries) as member, member.map() as data:
            return bytes(data)

    def _load_onnx(self, part: Partition) -> OrtPartition:
        manifest = self._bundle.manifest
        weights = {
            name: (self.weights.array(index), manifest.weights[index].dtype)
            for name, index in zip(part.param_names, part.params, strict=True)
        }
        return OrtPartition(
            part,
            self.variant.values,
            bytes(self._bundle.member(part.code)),
            weights,
            threads=self.options.threads,
            spin=all(p.kind == "onnx" for p in self.variant.partitions),
            keeps_denormals=self._keeps_denormals(part),
        )

    def describe(self, step: Step) -> tuple[str, str]:
        """A step as a phrase, and the label of its device, for messages."""
        variant = self.variant
        if isinstance(step, Wait):
            step = step.step
        if isinstance(step, Call):
            part = variant.partitions[step.partition]
            return f"running partition '{part.name}'", variant.devices[part.device].name
        space = step.carrier
        labels = [d.name for d in variant.devices if (d.backend, d.index) == (space.backend, space.index)]
        name = variant.values[step.value].name
        return f"sending '{name}' from {step.source} to {step.target}", labels[0] if labels else str(space)


class Context:
    """Buffers and bound calls for one run at a time; a session keeps a pool of them.

    `arrays` are the host views of inputs and outputs (and of every other host value) by value index. `feeds` are the
    inputs in order: the value, its tensor if that can be pointed at the caller's array, and its own memory. `movable`
    are the inputs and outputs whose tensors can be pointed elsewhere, and `direct` the large ones. Whoever uses the
    context may keep a function in `run_fast` that runs it.
    """

    def __init__(self, chain: Chain, *, reuse: bool = True, observer: Observer | None = None) -> None:
        self._chain = chain
        plan = chain.schedule
        needs_tensors = bool(chain.compiled)
        self.buffers = Buffers(plan, chain.variant.values, chain.allocations, reuse=reuse, tensors=needs_tensors)
        self.arrays: dict[int, Array] = dict(self.buffers.arrays)
        self.tensors: dict[tuple[int, Space], Any] = dict(self.buffers.tensors)
        self.objects: dict[int, Any] = {}
        for value, space in plan.residents:
            if space == HOST:
                self.arrays[value] = chain.weights.array(chain.constants[value])
            if needs_tensors and chain.variant.values[value].dtype in COMPUTED:
                self.tensors[value, space] = chain.weights.tensor(chain.constants[value], space)
        self._device_kept = device_keeper(chain.variant)
        self._flight = InFlight(chain.describe)
        self._cuda = CudaStreams() if any(space.backend == "cuda" for space in plan.spaces) else None
        self._dynamic = DynamicValues(chain.variant, plan, chain.allocations, keep_all=not reuse)
        if self._cuda is not None:
            hold(self, (self.tensors, self.arrays, self._dynamic.rooms, self._dynamic.tensors))
        awaited = frozenset(step.step for step in plan.steps if isinstance(step, Wait))
        buffers = self.buffers
        self.movable = direct_values(chain.variant, plan, buffers) if reuse else {}
        self.direct = {value: movable for value, movable in self.movable.items() if movable.is_large}
        self.feeds = tuple((v, self.direct.get(v), buffers.arrays.get(v)) for v in chain.variant.inputs)
        self._lending = Lending(plan, chain.variant, buffers.lent, buffers.slots, all_rest=not reuse)
        self._actions = tuple(
            self._lending.wrap(number, step, agent, self._bind(step, agent, step in awaited, observer), self._flight)
            for number, (step, agent) in enumerate(zip(plan.steps, plan.agents, strict=True))
        )
        self._steps = plan.steps
        on_host = all(space == HOST for space in (*plan.spaces, *plan.agents))
        self._waits = not on_host or bool(buffers.lent)
        self.observer = observer
        self.run_fast: Run | None = None
        self._generation = forks.generation
        forks.keep_in_children(self, portable=chain.portable)

    @property
    def plain_calls(self) -> tuple[Any, ...] | None:
        """The functions of tvm_ffi, without arguments, that are a run; None if there is more to it."""
        plain = self._only_calls and all(isinstance(action, tvm_ffi.Function) for action in self._actions)
        return self._actions if plain else None

    @property
    def one_call(self) -> tuple[Partition, Executable | OrtPartition] | None:
        """The partition whose one call is a run, and its code; None if there is more to it.

        It is an ONNX Runtime session, or code for dynamic sizes in host memory.
        """
        plan = self._chain.schedule
        if not self._only_calls or len(plan.steps) != 1:
            return None
        part = self._chain.variant.partitions[0]
        if part.kind == "onnx":
            return part, self._chain.onnx[0]
        dynamic = plan.objects.intersection((*part.inputs, *part.outputs))
        return (part, self._chain.compiled[0]) if dynamic else None

    @property
    def _only_calls(self) -> bool:
        """Whether the host does nothing in a run but perform the steps."""
        return self.observer is None and not self._waits and self._device_kept is nullcontext

    def wait_arranged(self) -> None:
        """Return when the weights are in the layouts that code reads; they must be verified."""
        self._chain.arranging.wait()

    def execute(self) -> None:
        """Run the chain on what the input arrays hold.

        Raises DeviceError naming the partition and the device, and InputValueError naming the node.
        """
        if self._device_kept is nullcontext:
            self._execute()
            return
        with self._device_kept():
            self._execute()

    def _execute(self) -> None:
        action: Action | None = None
        try:
            if not self._waits:
                for action in self._actions:
                    action()
                return
            self._dynamic.tensors.clear()
            for action in self._actions:
                action()
            action = None
            self._flight.finish()
            self._lending.rest()
        except BaseException as error:
            if forks.generation != self._generation:
                raise  # a callback has forked: no work is under way in this process
            self._flight.abandon()
            self._lending.recover()
            if self._cuda is not None:
                self._cuda.abandon()
            if action is None or not isinstance(error, Exception):
                raise
            step = next(s for s, a in zip(self._steps, self._actions, strict=True) if a is action)
            fault = device_fault(error, *self._chain.describe(step))
            if take_device_loss():
                release_pools()  # what this run took from TVM's pools has gone back to them
            raise fault from error

    def values(self) -> dict[int, Any]:
        """Copies of all values after a run, in value order; right only in a context without reuse."""
        found: dict[int, Any] = {value: to_python(held) for value, held in self.objects.items()}
        for (value, _), tensor in self.tensors.items():
            if value not in self.arrays and value not in found:
                found[value] = to_host(tensor)
        found.update((value, array.copy()) for value, array in self.arrays.items())
        return dict(sorted(found.items()))

    def _bind(self, step: Step, agent: Space, awaited: bool, observer: Observer | None) -> Action:
        """The action of a step; `agent` performs it, and the host waits for it later if it is `awaited`."""
        flight = self._flight
        if isinstance(step, Wait):
            waited = step.step
            device = waited.carrier if isinstance(waited, Copy) else self._chain.schedule.spaces[waited.partition]
            return lambda: flight.settle(device, waited)
        cuda = self._cuda if agent.backend == "cuda" else None
        if isinstance(step, Copy):
            start = bind_copy(step, self.tensors) if cuda is None else cuda.copy(step, self.tensors)
        else:
            call = self._bind_call(step.partition, agent, observer)
            if cuda is not None:
                call = cuda.call(agent, call, self._chain.variant.partitions[step.partition].inputs)
            if not awaited:
                return call if observer is None else observer.wrap(step, call, synchronizer(agent))
            start = call if cuda is not None else _marked(call, bind_mark(agent))

        def action() -> None:
            flight.add(agent, step, start())

        return action if observer is None else observer.wrap(step, action, lambda: flight.settle(agent, step))

    def _bind_call(self, index: int, space: Space, observer: Observer | None) -> Action:
        part = self._chain.variant.partitions[index]
        dynamic = self._chain.schedule.objects.intersection((*part.inputs, *part.outputs))
        if part.kind == "tvm" and dynamic:
            hook = None if observer is None else observer.instrument(index)
            code, known = self._chain.compiled[index], self._chain.schedule.objects
            if space != HOST:
                return call_on_device(code, part, space, self.tensors, self.objects, self._dynamic, known, hook)
            values = self._chain.variant.values
            narrow = {v: values[v].dtype for v in (*part.inputs, *part.outputs) if values[v].dtype in NARROW}
            held = frozenset(v for v in dynamic if container(values[v].dtype))
            return call_on_objects(code, part, self.tensors, self.arrays, self.objects, narrow, held, hook)
        if part.kind == "tvm":
            arguments = [self.tensors[value, space] for value in (*part.inputs, *part.outputs)]
            hook = None if observer is None else observer.instrument(index)
            return self._chain.compiled[index].bind(arguments, hook)
        session = self._chain.onnx[index]
        if not dynamic:
            return session.bind([self.arrays[v] for v in part.inputs], [self.arrays[v] for v in part.outputs])
        return session.call_on_objects(
            part.inputs, part.outputs, self.arrays, self.objects, as_python=not self._needs_ort_values(part)
        )

    def _needs_ort_values(self, part: Partition) -> bool:
        """Whether it touches dtypes that numpy lacks, or writes for another partition what Python cannot hold."""
        values, outputs = self._chain.variant.values, self._chain.variant.outputs
        if any(values[v].dtype in NARROW for v in (*part.inputs, *part.outputs)):
            return True
        return any(v not in outputs and not _python_holds(values[v].dtype) for v in part.outputs)


def _marked(call: Action, mark: Callable[[], Settle]) -> Callable[[], Settle]:
    """A call that also gives the call that waits for it."""

    def start() -> Settle:
        call()
        return mark()

    return start


def _python_holds(dtype: str) -> bool:
    return numpy_dtype(dtype) is not None or is_text(dtype) or container(dtype) is not None
