"""Overlap of steps: the order of starts and waits, without access to memory that is still in use."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.artifacts.manifest import Variant
from heterocc.passes.mincut import MinCut
from heterocc.passes.plan import Plan
from heterocc.runtime.plan.schedule import HOST, Call, Copy, Schedule, Space, Wait, schedule
from heterocc.runtime.plan.slots import plan_slots
from tests.passes.optimum.test_objectives import towers
from tests.runtime.letter_variants import chains, variant

CL, CL1, VK = Space("opencl", 0), Space("opencl", 1), Space("vulkan", 0)
LINKED = frozenset({(CL, CL1), (CL1, CL)})


def test_a_result_starts_back_at_once_and_the_host_waits_right_before_its_reader() -> None:
    plan = schedule(variant([("g", "x", "a"), ("c", "x", "b"), ("c", "ab", "y")]))
    assert str(plan).splitlines() == [
        "copy v0 host -> opencl:0",
        "call p0",
        "copy v1 opencl:0 -> host",
        "call p1",
        "wait for copy v1 opencl:0 -> host",
        "call p2",
    ]


def test_a_device_gets_its_work_before_the_host_begins_its_own() -> None:
    plan = schedule(variant([("c", "x", "b"), ("g", "x", "a"), ("c", "ab", "y")]))
    assert [s.partition for s in plan.steps if isinstance(s, Call)] == [1, 0, 2]
    assert plan.beside(Copy(2, CL, HOST)) == (0,)


def test_a_host_partition_that_need_not_wait_goes_before_one_that_must() -> None:
    plan = schedule(variant([("g", "x", "a"), ("c", "a", "b"), ("c", "x", "d"), ("c", "bd", "y")]))
    assert [s.partition for s in plan.steps if isinstance(s, Call)] == [0, 2, 1, 3]


def test_an_upload_starts_as_soon_as_the_host_has_the_value() -> None:
    plan = schedule(variant([("c", "x", "a"), ("c", "x", "b"), ("g", "ab", "y")]))
    assert plan.steps[:3] == (Call(0), Copy(1, HOST, CL), Call(1))


def test_devices_of_one_api_send_to_each_other_without_the_host_and_without_waiting() -> None:
    plan = schedule(variant([("g", "x", "a"), ("h", "a", "y")]), direct=LINKED)
    assert str(plan).splitlines() == [
        "copy v0 host -> opencl:0",
        "call p0",
        "copy v1 opencl:0 -> opencl:1",
        "call p1",
        "copy v2 opencl:1 -> host",
        "wait for copy v2 opencl:1 -> host",
    ]


def test_a_value_that_lies_in_host_memory_is_sent_from_there_even_between_linked_devices() -> None:
    plan = schedule(variant([("g", "x", "a"), ("h", "x", "y"), ("g", "ay", "z")]), direct=LINKED)
    assert Copy(0, HOST, CL1) in plan.steps
    assert Copy(2, CL1, CL) in plan.steps


def test_devices_of_two_apis_meet_in_host_memory() -> None:
    plan = schedule(variant([("g", "x", "a"), ("v", "a", "y")]), direct=LINKED)
    assert Copy(1, CL, HOST) in plan.steps
    assert Copy(1, HOST, VK) in plan.steps


def test_a_device_in_host_memory_works_beside_the_host_until_its_result_is_read() -> None:
    plan = schedule(variant([("g", "x", "a"), ("c", "x", "b"), ("c", "ab", "y")]), frozenset({CL}))
    assert plan.steps == (Call(0), Call(1), Wait(Call(0)), Call(2))


def test_two_devices_in_host_memory_wait_for_each_other() -> None:
    plan = schedule(variant([("g", "x", "a"), ("v", "a", "y")]), frozenset({CL, VK}))
    assert plan.steps == (Call(0), Wait(Call(0)), Call(1), Wait(Call(1)))


def test_an_order_that_overlaps_but_takes_much_more_memory_is_not_taken() -> None:
    """While a device works the host could run ahead and keep eight results until the device's is there."""
    parts = [("g", "x", "A")]
    for last, early, late in zip("Abcdefgh", "BCDEFGHI", "bcdefghi", strict=True):
        parts += [("c", "x", early), ("c", last + early, late)]
    small, large = (schedule(variant(parts, size=size)) for size in (4, 1 << 20))
    assert [s.partition for s in small.steps if isinstance(s, Call)][:9] == [0, 1, 3, 5, 7, 9, 11, 13, 15]
    assert [s.partition for s in large.steps if isinstance(s, Call)] == list(range(len(parts)))


@dataclass
class Machine:
    """Runs a plan as a machine may that does everything as late as it can, or at any time: drawn by chance.

    Memory is slots; a write stores the value's number. Reading another number is the tested failure.
    """

    model: Variant
    plan: Schedule
    chance: random.Random
    laziness: float
    memory: dict[tuple[Space, int], int | None] = field(default_factory=dict)
    queues: dict[Space, list[int]] = field(default_factory=dict)
    after: dict[int, tuple[Space, int]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.slot: dict[tuple[int, Space], tuple[Space, int]] = {}
        for space in dict.fromkeys(b.space for b in self.plan.buffers):
            here = [b for b in self.plan.buffers if b.space == space]
            slots = plan_slots([b.lifetime for b in here])
            for buffer, number in zip(here, slots.slot, strict=True):
                self.slot[buffer.value, space] = (space, number)

    def run(self) -> None:
        for value in self.model.inputs:
            self.memory[self.slot[value, HOST]] = value
        for number, step in enumerate(self.plan.steps):
            agent = self.plan.agents[number]
            if isinstance(step, Wait):
                awaited = self.plan.steps.index(step.step)
                self.advance(self.plan.agents[awaited], awaited)
            elif agent == HOST:
                self.carry_out(number)
            else:
                if isinstance(step, Copy) and HOST not in (step.source, step.target):
                    given = self.queues.get(step.source, [])
                    if given:
                        self.after[number] = (step.source, given[-1])
                self.queues.setdefault(agent, []).append(number)
            for device in self.queues:
                while self.queues[device] and self.chance.random() > self.laziness:
                    self.advance(device, self.queues[device][0])
        assert not any(self.queues.values()), "something is left to do after the run"
        for value in (*self.model.inputs, *self.model.outputs):
            self.expect(value, HOST)

    def advance(self, device: Space, until: int) -> None:
        """Run the device's commands up to a step."""
        while self.queues.get(device) and self.queues[device][0] <= until:
            number = self.queues[device][0]
            if number in self.after:
                self.advance(*self.after[number])
            self.queues[device].pop(0)
            self.carry_out(number)

    def carry_out(self, number: int) -> None:
        step = self.plan.steps[number]
        if isinstance(step, Copy):
            self.expect(step.value, step.source)
            self.memory[self.slot[step.value, step.target]] = step.value
        elif isinstance(step, Call):
            part, space = self.model.partitions[step.partition], self.plan.spaces[step.partition]
            home = HOST if space in self.plan.shared else space
            for value in part.inputs:
                self.expect(value, home)
            for value in part.outputs:
                self.memory[self.slot[value, home]] = value

    def expect(self, value: int, space: Space) -> None:
        assert self.memory.get(self.slot[value, space]) == value, f"v{value} is not in {space}"


SHARED = st.sets(st.sampled_from([CL, CL1, VK])).map(frozenset)
DIRECT = st.sampled_from([frozenset[tuple[Space, Space]](), LINKED])


@given(chains("cghv"), SHARED, DIRECT, st.integers(0, 1 << 30), st.sampled_from([0.0, 0.5, 1.0]))
def test_however_late_devices_are_nothing_reads_memory_that_another_value_has_taken(
    model: Variant, shared: frozenset[Space], direct: frozenset[tuple[Space, Space]], seed: int, laziness: float
) -> None:
    Machine(model, schedule(model, shared, direct), random.Random(seed), laziness).run()


@given(chains("cghv"), SHARED)
def test_no_slot_is_written_while_a_copy_that_is_under_way_uses_it(model: Variant, shared: frozenset[Space]) -> None:
    plan = schedule(model, shared)
    machine = Machine(model, plan, random.Random(0), 1.0)
    for start, copy in enumerate(plan.steps):
        if not isinstance(copy, Copy):
            continue
        used = {machine.slot[copy.value, copy.source], machine.slot[copy.value, copy.target]}
        for number in range(start + 1, len(plan.steps)):
            step, agent = plan.steps[number], plan.agents[number]
            if isinstance(step, Wait):
                awaited = plan.steps.index(step.step)
                if plan.agents[awaited] == copy.carrier and awaited >= start:
                    break
            if agent == copy.carrier:
                continue  # comes after it by itself
            if isinstance(step, Copy):
                assert machine.slot[step.value, step.target] not in used
            elif isinstance(step, Call):
                home = HOST if plan.spaces[step.partition] in plan.shared else plan.spaces[step.partition]
                written = model.partitions[step.partition].outputs
                assert not used.intersection(machine.slot[v, home] for v in written)


@given(chains("cghv"), SHARED, DIRECT)
def test_each_partition_runs_once_and_each_value_is_sent_to_a_memory_once(
    model: Variant, shared: frozenset[Space], direct: frozenset[tuple[Space, Space]]
) -> None:
    plan = schedule(model, shared, direct)
    assert sorted(s.partition for s in plan.steps if isinstance(s, Call)) == list(range(len(model.partitions)))
    sent = [(s.value, s.target) for s in plan.steps if isinstance(s, Copy)]
    assert len(sent) == len(set(sent))
    assert not any({s.source, s.target} & shared for s in plan.steps if isinstance(s, Copy))


@pytest.mark.parametrize("host", ["A", "B"])
def test_a_plan_made_for_overlap_starts_the_devices_tower_before_the_hosts_own(host: str) -> None:
    """Whichever tower the host has: the device's is called before it, and waited for after it."""
    graph, machine = towers(6)
    plan = MinCut(objective="overlap").run(Plan.initial(graph, machine))
    letter = {v: chr(ord("a") + i) for i, v in enumerate(graph.values) if v != "x"} | {"x": "x"}
    parts = [
        (
            "c" if part.device == host else "g",
            "".join(letter[v] for v in plan.inputs_of(number)),
            "".join(letter[v] for v in plan.outputs_of(number)),
        )
        for number, part in enumerate(plan.partitions)
    ]
    steps = schedule(variant(parts)).steps
    on_device, on_host = (
        next(i for i, (device, _, _) in enumerate(parts) if device == d and len(plan.partitions[i].nodes) == 6)
        for d in "gc"
    )
    first, second = steps.index(Call(on_device)), steps.index(Call(on_host))
    awaited = [steps.index(step.step) for step in steps[first:second] if isinstance(step, Wait)]
    assert first < second and all(number < first for number in awaited)
    assert any(isinstance(step, Wait) for step in steps[second:])
