"""The schedule of a variant: the order of its partitions and of the copies between memories.

Computed by a pure function. Of the orders that `issue` returns, the one with the most overlap is chosen, unless it
needs too much memory: values that are sent or computed early stay allocated longer.
"""

from __future__ import annotations

from math import prod

import numpy as np

from heterocc.artifacts.dtypes import NUMPY
from heterocc.artifacts.errors import BundleManifestError
from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import TensorSpec, Variant
from heterocc.runtime.plan.order import Flow, Order, issue
from heterocc.runtime.plan.slots import Lifetime, plan_slots
from heterocc.runtime.plan.steps import HOST, Call, Copy, Space, Step, Wait

__all__ = [
    "HOST",
    "Buffer",
    "Call",
    "Copy",
    "Schedule",
    "Space",
    "Step",
    "Wait",
    "nbytes",
    "numpy_dtype",
    "schedule",
    "space_of",
    "static_shape",
]

MEMORY_FOR_OVERLAP = 1.25
"""The limit on the memory of an order with more overlap, as a multiple of that of the simplest order."""

FREE_BYTES = 1 << 20
"""Additional memory in bytes that is always accepted for overlap."""


@frozen
class Buffer:
    """A static value's buffer in one memory, live from the step that writes it to the last that reads it.

    Step 0 writes the inputs, step i+1 is `steps[i]`; a model input or output is live to the end. If a step is executed
    by another device than the memory's own (such as a copy out of host memory), the buffer is live until the host has
    waited for the step. `users` are the devices that access it, and the host.
    """

    value: int
    space: Space
    lifetime: Lifetime
    users: frozenset[Space]


@frozen
class Schedule:
    """The steps of a run, in order.

    `spaces[p]` is the memory of the device of partition p. `agents` has the executor of each step, the host or a
    device. `residents` are constants that a partition reads or the model returns, by value and memory: they are placed
    at load and never sent. `objects` are values without a static shape or a numpy dtype; they are passed between
    partitions as Python objects. Devices in `shared` compute in host memory.
    """

    spaces: tuple[Space, ...]
    steps: tuple[Step, ...]
    agents: tuple[Space, ...]
    buffers: tuple[Buffer, ...]
    residents: tuple[tuple[int, Space], ...]
    objects: frozenset[int]
    shared: frozenset[Space]

    def __str__(self) -> str:
        return "\n".join(str(step) for step in self.steps)

    def beside(self, copy: Copy) -> tuple[int, ...]:
        """The partitions of other devices that may run at the same time as a copy, between its start and its wait."""
        start = self.steps.index(copy)
        found: list[int] = []
        for step, agent in zip(self.steps[start + 1 :], self.agents[start + 1 :], strict=True):
            if isinstance(step, Wait) and self.agents[self.steps.index(step.step)] == copy.carrier:
                break
            if isinstance(step, Call) and agent != copy.carrier:
                found.append(step.partition)
        return tuple(found)

    def nbytes(self) -> int:
        """The total size of the buffers in bytes, with slots from `plan_slots`."""
        spaces = dict.fromkeys(b.space for b in self.buffers)
        return sum(plan_slots([b.lifetime for b in self.buffers if b.space == s]).nbytes for s in spaces)


def numpy_dtype(name: str) -> np.dtype[np.generic] | None:
    """The fixed-size numpy dtype for a manifest's dtype text, or None if numpy has none."""
    return NUMPY.get(name)


def static_shape(spec: TensorSpec) -> tuple[int, ...] | None:
    """The tensor's shape if every dimension is known and numpy has its dtype, else None."""
    if spec.shape is None or numpy_dtype(spec.dtype) is None:
        return None
    dims = tuple(d for d in spec.shape if isinstance(d, int))
    return dims if len(dims) == len(spec.shape) else None


def nbytes(spec: TensorSpec) -> int:
    """The size of a static tensor in bytes; 0 for other values."""
    shape, dtype = static_shape(spec), numpy_dtype(spec.dtype)
    return 0 if shape is None or dtype is None else prod(shape) * dtype.itemsize


def space_of(backend: str, index: int) -> Space:
    """The memory in which a device computes."""
    return HOST if backend in ("cpu", "ort") else Space(backend, index)


def schedule(
    variant: Variant,
    shared: frozenset[Space] = frozenset(),
    direct: frozenset[tuple[Space, Space]] = frozenset(),
) -> Schedule:
    """Order the variant's partitions and the transfers between them.

    A value is sent to each other memory at most once. Devices in `shared` compute in host memory: their values have
    host buffers and are not copied. Pairs in `direct` copy from the first device to the second without the host; other
    devices exchange values by way of host memory.

    Dynamic values are not copied by steps: partitions on devices take them from the host's objects and leave them
    there. With such partitions the order is the simplest one.

    Raises BundleManifestError if a partition reads a value that was not written, or one compiled for another device
    than the CPU a dynamic value without room.
    """
    objects = frozenset(i for i, spec in enumerate(variant.values) if static_shape(spec) is None)
    _check(variant, objects)
    constants = {int(value) for value in variant.constants}
    spaces = tuple(
        space_of(variant.devices[p.device].backend, variant.devices[p.device].index) for p in variant.partitions
    )
    apart = any(
        space != HOST and objects.intersection((*part.inputs, *part.outputs))
        for space, part in zip(spaces, variant.partitions, strict=True)
    )
    flow = _flow(variant, spaces, constants | objects if apart else constants, shared, direct)
    residents = dict.fromkeys(
        (value, space)
        for part, space in zip(variant.partitions, spaces, strict=True)
        for value in part.inputs
        if value in constants
    )
    residents.update(dict.fromkeys((value, HOST) for value in variant.outputs if value in constants))

    def planned(order: Order) -> Schedule:
        buffers = _buffers(variant, flow, order, objects)
        return Schedule(spaces, order.steps, order.agents, buffers, tuple(residents), objects, shared)

    plain = planned(issue(flow, early=False, reorder=False))
    if apart or set(spaces) <= {HOST}:
        return plain
    limit = max(MEMORY_FOR_OVERLAP * plain.nbytes(), plain.nbytes() + FREE_BYTES)
    candidates = (planned(issue(flow, early=True, reorder=reorder)) for reorder in (True, False))
    return next((plan for plan in candidates if plan.nbytes() <= limit), plain)


def _check(variant: Variant, objects: frozenset[int]) -> None:
    constants = {int(value) for value in variant.constants}
    known = {*variant.inputs, *constants}
    for part in variant.partitions:
        if part.kind == "tvm" and variant.devices[part.device].backend != "cpu":
            dynamic = [variant.values[v].name for v in part.inputs if v in objects and str(v) not in variant.rooms]
            if dynamic:
                raise BundleManifestError(
                    f"partition '{part.name}' is compiled, but '{dynamic[0]}' has no static shape"
                )
        for value in part.inputs:
            if value not in known:
                name = variant.values[value].name
                raise BundleManifestError(f"partition '{part.name}' reads '{name}' before anything writes it")
        for value in part.outputs:
            if value in known:
                raise BundleManifestError(f"'{variant.values[value].name}' is written twice")
            known.add(value)
    for value in variant.outputs:
        if value not in known:
            name = variant.values[value].name
            raise BundleManifestError(f"the model's output list reads '{name}' before anything writes it")


def _flow(
    variant: Variant,
    spaces: tuple[Space, ...],
    constants: set[int],
    shared: frozenset[Space],
    direct: frozenset[tuple[Space, Space]],
) -> Flow:
    homes = tuple(HOST if space in shared else space for space in spaces)
    reads = tuple(tuple(v for v in part.inputs if v not in constants) for part in variant.partitions)
    outputs = tuple(dict.fromkeys(v for v in variant.outputs if v not in constants))
    needs: dict[int, dict[Space, None]] = {}
    for home, values in zip(homes, reads, strict=True):
        for value in values:
            needs.setdefault(value, {})[home] = None
    for value in outputs:
        needs.setdefault(value, {})[HOST] = None
    return Flow(
        devices=spaces,
        homes=homes,
        reads=reads,
        writes=tuple(part.outputs for part in variant.partitions),
        inputs=tuple(dict.fromkeys(variant.inputs)),
        outputs=outputs,
        needs={value: tuple(places) for value, places in needs.items()},
        direct=frozenset(pair for pair in direct if not shared.intersection(pair)),
    )


def _buffers(variant: Variant, flow: Flow, order: Order, objects: frozenset[int]) -> tuple[Buffer, ...]:
    spans: dict[tuple[int, Space], list[int]] = {}
    users: dict[tuple[int, Space], set[Space]] = {}

    def touch(value: int, space: Space, agent: Space, number: int, beside: bool = False) -> None:
        if value in objects:
            return
        span = spans.setdefault((value, space), [number, number])
        users.setdefault((value, space), set()).add(agent)
        if agent != space or beside:
            number = next(wait for awaited, wait in order.seen[agent] if awaited >= number)
        span[1] = max(span[1], number)

    for value in variant.inputs:
        touch(value, HOST, HOST, 0)
    for number, (step, agent) in enumerate(zip(order.steps, order.agents, strict=True), 1):
        if isinstance(step, Copy):
            # CUDA's copies run in parallel with its kernels, which must not use the source and target memory meanwhile.
            beside = agent.backend == "cuda"
            touch(step.value, step.source, agent, number, beside)
            free = _free_since(order, agent, number) if beside and step.target == agent else number
            touch(step.value, step.target, agent, free)
        elif isinstance(step, Call):
            place = step.partition
            for value in (*flow.reads[place], *flow.writes[place]):
                touch(value, flow.homes[place], agent, number)
    for value in (*flow.inputs, *flow.outputs):
        touch(value, HOST, HOST, len(order.steps) + 1)
    return tuple(
        Buffer(value, space, Lifetime(nbytes(variant.values[value]), first, last), frozenset(users[value, space]))
        for (value, space), (first, last) in spans.items()
    )


def _free_since(order: Order, device: Space, number: int) -> int:
    """The first step of a device that the host does not know to be finished when step `number` starts."""
    done = max((known for known, wait in order.seen.get(device, ()) if wait < number), default=0)
    return next((n for n in range(done + 1, number) if order.agents[n - 1] == device), number)
