"""Turns a variant into a run order: which partition runs when, and which value is sent where, once each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from heterocc.artifacts.errors import BundleManifestError
from heterocc.artifacts.manifest import TensorSpec, Variant
from heterocc.runtime.planner import Lifetime


@dataclass(frozen=True, slots=True, order=True)
class Space:
    """A memory that values live in: the host's, or that of a device (`backend` and `index` as in the manifest)."""

    backend: str
    index: int = 0

    def __str__(self) -> str:
        return "host" if self == HOST else f"{self.backend}:{self.index}"


HOST = Space("cpu")


@dataclass(frozen=True, slots=True)
class Copy:
    """Send a value from one memory to another."""

    value: int
    source: Space
    target: Space


@dataclass(frozen=True, slots=True)
class Call:
    """Run a partition."""

    partition: int


Step = Copy | Call


@dataclass(frozen=True, slots=True)
class Buffer:
    """A static value's place in one memory, alive from the step that writes it to the last that reads it.

    Step 0 is the feeding of the inputs, step i+1 is `steps[i]`; a model input or output is alive to the end.
    """

    value: int
    space: Space
    lifetime: Lifetime


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a run does, in order.

    `spaces[p]` is partition p's memory. `residents` are constants that a partition reads or the model returns, by value
    and memory: they are placed at load and never sent. `objects` are values without a static shape or a numpy dtype;
    they pass from partition to partition as Python objects.
    """

    spaces: tuple[Space, ...]
    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    residents: tuple[tuple[int, Space], ...]
    objects: frozenset[int]
    shared: frozenset[Space]


def numpy_dtype(name: str) -> np.dtype[np.generic] | None:
    """The fixed-size numpy dtype of a manifest's dtype text, None for what numpy has no such dtype for."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    return dtype if dtype.kind in "biufc" else None


def static_shape(spec: TensorSpec) -> tuple[int, ...] | None:
    """The tensor's shape if every dimension is known and numpy has its dtype, else None."""
    if spec.shape is None or numpy_dtype(spec.dtype) is None:
        return None
    dims = tuple(d for d in spec.shape if d is not None)
    return dims if len(dims) == len(spec.shape) else None


def nbytes(spec: TensorSpec) -> int:
    """Bytes of a static tensor; 0 for others."""
    shape, dtype = static_shape(spec), numpy_dtype(spec.dtype)
    return 0 if shape is None or dtype is None else prod(shape) * dtype.itemsize


def space_of(backend: str, index: int) -> Space:
    """The memory that a device computes in."""
    return HOST if backend in ("cpu", "ort") else Space(backend, index)


def schedule(variant: Variant, shared: frozenset[Space] = frozenset()) -> Schedule:
    """Order the variant's partitions and the transfers between them.

    A value is sent to each other memory at most once, right before its first reader there. Two devices meet in host
    memory. Devices in `shared` compute in host memory itself: nothing is sent to them or from them, and their values
    have host buffers.

    Raises BundleManifestError where a partition reads what nobody wrote, or a compiled one a dynamic value.
    """
    constants = {int(value) for value in variant.constants}
    objects = frozenset(i for i, spec in enumerate(variant.values) if static_shape(spec) is None)
    spaces = tuple(
        space_of(variant.devices[p.device].backend, variant.devices[p.device].index) for p in variant.partitions
    )
    held: dict[int, list[Space]] = {value: [HOST] for value in variant.inputs}
    steps: list[Step] = []
    residents: dict[tuple[int, Space], None] = {}

    def home(space: Space) -> Space:
        return HOST if space in shared else space

    def bring(value: int, space: Space, reader: str) -> None:
        if value in constants:
            residents[value, space] = None
            return
        space = home(space)
        if value not in held:
            raise BundleManifestError(f"{reader} reads '{variant.values[value].name}' before anything writes it")
        if space in held[value]:
            return
        source = HOST if HOST in held[value] else held[value][0]
        if HOST not in (source, space):
            bring(value, HOST, reader)
            source = HOST
        steps.append(Copy(value, source, space))
        held[value].append(space)

    for index, part in enumerate(variant.partitions):
        if part.kind == "tvm":
            dynamic = [variant.values[v].name for v in (*part.inputs, *part.outputs) if v in objects]
            if dynamic:
                raise BundleManifestError(
                    f"partition '{part.name}' is compiled, but '{dynamic[0]}' has no static shape"
                )
        for value in part.inputs:
            bring(value, spaces[index], f"partition '{part.name}'")
        steps.append(Call(index))
        for value in part.outputs:
            if value in held or value in constants:
                raise BundleManifestError(f"'{variant.values[value].name}' is written twice")
            held[value] = [home(spaces[index])]
    for value in variant.outputs:
        bring(value, HOST, "the model's output list")
    homes = tuple(home(space) for space in spaces)
    buffers = _buffers(variant, steps, homes, objects, constants)
    return Schedule(spaces, tuple(steps), buffers, tuple(residents), objects, shared)


def _buffers(
    variant: Variant, steps: Sequence[Step], spaces: tuple[Space, ...], objects: frozenset[int], constants: set[int]
) -> tuple[Buffer, ...]:
    spans: dict[tuple[int, Space], list[int]] = {}

    def touch(value: int, space: Space, step: int) -> None:
        if value not in objects and value not in constants:
            spans.setdefault((value, space), [step, step])[1] = step

    for value in variant.inputs:
        touch(value, HOST, 0)
    for number, step in enumerate(steps, 1):
        if isinstance(step, Copy):
            touch(step.value, step.source, number)
            touch(step.value, step.target, number)
        else:
            part = variant.partitions[step.partition]
            for value in (*part.inputs, *part.outputs):
                touch(value, spaces[step.partition], number)
    for value in (*variant.inputs, *variant.outputs):
        touch(value, HOST, len(steps) + 1)
    return tuple(
        Buffer(value, space, Lifetime(nbytes(variant.values[value]), first, last))
        for (value, space), (first, last) in spans.items()
    )
