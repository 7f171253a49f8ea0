"""Plans on CUDA's streams: values are not read before they are written, nor after their memory is reused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.artifacts.manifest import Variant
from heterocc.runtime.execute import cuda_streams as under_test
from heterocc.runtime.execute.inflight import InFlight, Settle
from heterocc.runtime.plan.schedule import HOST, Call, Copy, Schedule, Space, Wait, schedule
from heterocc.runtime.plan.slots import plan_slots
from tests.runtime.letter_variants import chains, variant

GPU, GPU1 = Space("cuda", 0), Space("cuda", 1)
LINKED = frozenset({(GPU, GPU1), (GPU1, GPU)})


@dataclass(eq=False)
class Event:
    """As heterocc.runtime.native.cuda_driver.Event, of a device that is simulated."""

    device: int
    stream: Stream | None = None
    place: int = 0

    def wait(self) -> None:
        if self.stream is not None:
            self.stream.run(self.place)


@dataclass(eq=False)
class Stream:
    """A stream that runs its commands when it is waited for, or when the simulation advances."""

    machine: Machine
    device: int
    work: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0
    handle: int = 0
    followed: list[Stream] = field(default_factory=list)

    def follow(self, events: Sequence[Event]) -> None:
        for event in events:
            stream, place = event.stream, event.place
            if stream is not None:
                self.followed.append(stream)
                self.work.append(lambda stream=stream, place=place: stream.run(place))

    def copy(self, source: int, target: int, size: int) -> None:
        self.work.append(lambda: self.machine.move(source, target))

    def record(self, event: Event) -> None:
        event.stream, event.place = self, len(self.work)

    def run(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.work[self.done - 1]()

    def wait(self) -> None:
        self.run(len(self.work))


@dataclass
class Tensor:
    """Stands for a value's place in a memory."""

    address: int
    itemsize: int = 4

    def numel(self) -> int:
        return 1

    @property
    def dtype(self) -> Tensor:
        return self

    def data_ptr(self) -> int:
        return self.address


class Machine:
    """Runs a plan by the code that binds the steps of CUDA devices; a slot holds the number of the value in it."""

    def __init__(self, model: Variant, plan: Schedule, chance: random.Random, laziness: float) -> None:
        self.model, self.plan, self.chance, self.laziness = model, plan, chance, laziness
        self.memory: dict[int, int] = {}  # by address, which is that of a slot
        self.streams: list[Stream] = []
        self.kernels: dict[int, Stream] = {}
        self.slots: dict[tuple[int, Space], int] = {}
        for place, space in enumerate(dict.fromkeys(b.space for b in plan.buffers), 1):
            here = [b for b in plan.buffers if b.space == space]
            for buffer, number in zip(here, plan_slots([b.lifetime for b in here]).slot, strict=True):
                self.slots[buffer.value, space] = 1000 * place + number

    def stream(self, device: int) -> Stream:
        self.streams.append(Stream(self, device))
        return self.streams[-1]

    def kernel_stream(self, device: int) -> Stream:
        if device not in self.kernels:
            self.kernels[device] = self.stream(device)
        return self.kernels[device]

    def move(self, source: int, target: int) -> None:
        self.memory[target] = self.memory[source]

    def compute(self, partition: int) -> None:
        part, space = self.model.partitions[partition], self.plan.spaces[partition]
        for value in part.inputs:
            self.expect(value, space)
        for value in part.outputs:
            self.memory[self.slots[value, space]] = value

    def expect(self, value: int, space: Space) -> None:
        assert self.memory.get(self.slots[value, space]) == value, f"v{value} is not in {space}"

    def run(self) -> None:
        flight = InFlight(lambda step: (str(step), "a device"))
        streams = under_test.CudaStreams()
        tensors = {key: Tensor(address) for key, address in self.slots.items()}
        bound: list[Callable[[], Settle] | None] = []
        for step, agent in zip(self.plan.steps, self.plan.agents, strict=True):
            if isinstance(step, Copy):
                bound.append(streams.copy(step, tensors))
            elif isinstance(step, Call) and agent != HOST:
                bound.append(
                    streams.call(agent, self._queue(step, agent), self.model.partitions[step.partition].inputs)
                )
            else:
                bound.append(None)
        awaited = {step.step for step in self.plan.steps if isinstance(step, Wait)}
        for value in self.model.inputs:
            self.memory[self.slots[value, HOST]] = value
        for step, agent, start in zip(self.plan.steps, self.plan.agents, bound, strict=True):
            if isinstance(step, Wait):
                waited = step.step
                of = waited.carrier if isinstance(waited, Copy) else self.plan.spaces[waited.partition]
                flight.settle(of, waited)
            elif start is not None:
                settle = start()
                if isinstance(step, Copy) or step in awaited:
                    flight.add(agent, step, settle)
            elif isinstance(step, Call):
                self.compute(step.partition)
            for stream in self.streams:
                while stream.done < len(stream.work) and self.chance.random() > self.laziness:
                    stream.run(stream.done + 1)
        flight.finish()
        for value in (*self.model.inputs, *self.model.outputs):
            self.expect(value, HOST)
        assert all(s.done == len(s.work) for s in self.streams), "something is left to do after the run"

    def _queue(self, step: Call, agent: Space) -> Callable[[], None]:
        return lambda: self.kernel_stream(agent.index).work.append(lambda: self.compute(step.partition))


def simulate(model: Variant, plan: Schedule, seed: int, laziness: float) -> Machine:
    machine = Machine(model, plan, random.Random(seed), laziness)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(under_test, "Event", Event)
        patch.setattr(under_test, "Stream", machine.stream)
        patch.setattr(under_test, "kernel_stream", machine.kernel_stream)
        machine.run()
    return machine


@given(
    chains("cnnm"), st.sampled_from([frozenset(), LINKED]), st.integers(0, 1 << 30), st.sampled_from([0.0, 0.5, 1.0])
)
def test_however_late_streams_are_nothing_reads_memory_that_another_value_has_taken(
    model: Variant, direct: frozenset[tuple[Space, Space]], seed: int, laziness: float
) -> None:
    simulate(model, schedule(model, direct=direct), seed, laziness)


def test_who_waits_for_a_gpu_that_another_one_feeds_has_waited_for_the_copies_of_that_one() -> None:
    """The host waits for y alone, of the second GPU, and takes a for done: it was sent before b was."""
    model = variant([("n", "x", "ab"), ("m", "b", "y"), ("c", "ya", "z")])
    plan = schedule(model, direct=LINKED)
    assert [s for s in plan.steps if isinstance(s, Wait)] == [Wait(Copy(3, GPU1, HOST))]
    simulate(model, plan, 0, 1.0)


def test_streams_wait_for_each_other_only_if_one_reads_what_the_other_wrote() -> None:
    """Kernels wait for no copy of a result, and copies to the device for no kernel."""
    model = variant([("n", "x", "a"), ("c", "z", "d"), ("n", "d", "b"), ("n", "d", "e")], inputs="xz", outputs="abe")
    plan = schedule(model)
    assert [str(s) for s in plan.steps if not isinstance(s, Wait)] == [
        "copy v0 host -> cuda:0",
        "call p0",
        "copy v2 cuda:0 -> host",
        "call p1",
        "copy v3 host -> cuda:0",
        "call p2",
        "copy v4 cuda:0 -> host",
        "call p3",
        "copy v5 cuda:0 -> host",
    ]
    machine = simulate(model, plan, 0, 1.0)
    to_device, kernels, to_host = machine.streams
    assert kernels is machine.kernels[0]
    assert (to_device.followed, kernels.followed, to_host.followed) == ([], [to_device] * 3, [kernels] * 3)
