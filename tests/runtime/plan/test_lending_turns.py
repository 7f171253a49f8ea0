"""Turns of lent memory: it is not accessed on the wrong side, however late the device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from heterocc.artifacts.manifest import Variant
from heterocc.runtime.plan.lending_turns import Borders, Side, plan_borders
from heterocc.runtime.plan.schedule import HOST, Call, Copy, Schedule, Space, Wait, schedule
from heterocc.runtime.plan.slots import plan_slots
from tests.runtime.letter_variants import chains, variant
from tests.runtime.plan.test_overlap import CL, CL1, VK

LENDER = CL
CL2 = Space("opencl", 2)
LINKED = frozenset({(CL1, CL2), (CL2, CL1)})


def borders_of(model: Variant, plan: Schedule, *, reuse: bool = True) -> tuple[Borders, dict[int, int]]:
    """The turns, and the slots as `Buffers` plans them."""
    shared = [b for b in plan.buffers if b.space == HOST and LENDER in b.users and b.users != {LENDER}]
    planned = plan_slots([b.lifetime for b in shared], reuse=reuse)
    slots = {b.value: number for b, number in zip(shared, planned.slot, strict=True)}
    reads = {i: part.inputs for i, part in enumerate(model.partitions)}
    writes = {i: part.outputs for i, part in enumerate(model.partitions)}
    resting = frozenset((*model.inputs, *model.outputs)) if reuse else frozenset(slots)
    return plan_borders(plan, reads, writes, LENDER, slots, resting), slots


@dataclass
class Machine:
    """The device's queue, and for each slot its side and the side to which it is turning.

    Without `reuse` callers use every value between runs, as they do in a context that records them all.
    """

    model: Variant
    plan: Schedule
    chance: random.Random
    laziness: float
    reuse: bool = True
    is_on: dict[int, Side] = field(default_factory=dict)
    goes_to: dict[int, Side] = field(default_factory=dict)
    queue: list[tuple[int, str, int, Side]] = field(default_factory=list)  # step, what, slot, side

    def __post_init__(self) -> None:
        self.borders, self.slots = borders_of(self.model, self.plan, reuse=self.reuse)
        self.is_on = dict.fromkeys(self.slots.values(), Side.HOST)
        self.goes_to = dict(self.is_on)
        self.busy: dict[int, Space] = {}  # steps of other devices in host memory without a wait so far
        ends = (*self.model.inputs, *self.model.outputs) if self.reuse else self.slots
        self.resting = {self.slots[v] for v in ends if v in self.slots}

    def run(self, fails_at: int | None = None) -> None:
        """One run; a step that fails ends it, and all memory turns to the host."""
        self.use(self.resting, writes=True)
        for number, (step, agent) in enumerate(zip(self.plan.steps, self.plan.agents, strict=True)):
            if isinstance(step, Wait):
                awaited = self.plan.steps.index(step.step)
                if self.plan.agents[awaited] == LENDER:
                    self.advance(awaited)
                self.is_done(self.plan.agents[awaited], awaited)
                continue
            for other in self.borders.idle.get(number, frozenset()):
                self.is_done(other, number - 1)
            self.turn(number, self.borders.before.get(number, {}), wait=agent != LENDER)
            if number == fails_at:
                return self.recover()
            used = {(self.slots[v], w) for v, w in self.touched(number) if v in self.slots}
            if agent == LENDER:
                for slot, writes in used:
                    self.queue.append((number, "write" if writes else "read", slot, Side.DEVICE))
                assert not any(self.goes_to[slot] == Side.HOST for slot, _ in used), "a kernel on mapped memory"
            else:
                for slot, writes in used:
                    self.use({slot}, writes)
                if agent != HOST:
                    self.busy[number] = agent
            self.turn(number, self.borders.after.get(number, {}), wait=False)
            while self.queue and self.chance.random() > self.laziness:
                self.advance_one()
        self.advance(len(self.plan.steps))
        self.busy.clear()
        self.turn(len(self.plan.steps), self.borders.rest, wait=True)
        self.use(self.resting, writes=True)
        return None

    def recover(self) -> None:
        self.busy.clear()
        self.turn(len(self.plan.steps), dict.fromkeys(self.goes_to, Side.HOST), wait=True)

    def is_done(self, device: Space, until: int) -> None:
        """Record that another device has finished its commands up to a step, and the steps before it."""
        for number in range(until + 1):
            step = self.plan.steps[number]
            if self.plan.agents[number] != device:
                continue
            self.busy.pop(number, None)
            if isinstance(step, Copy) and HOST not in (step.source, step.target):
                self.is_done(step.source, number - 1)

    def turn(self, number: int, turns: object, *, wait: bool) -> None:
        assert isinstance(turns, dict)
        for slot, side in turns.items():
            if self.goes_to[slot] != side:
                using = [n for n in self.busy for v, _ in self.touched(n) if self.slots.get(v) == slot]
                assert not using, "another device still reads memory that is turned"
                self.goes_to[slot] = side
                self.queue.append((number, "turn", slot, side))
        if wait and turns:
            self.advance(number)

    def use(self, slots: set[int], writes: bool) -> None:
        """The host, or another device, reads or writes."""
        for slot in slots:
            allowed = {Side.HOST} if writes else {Side.HOST, Side.BOTH}
            assert self.goes_to[slot] in allowed, f"slot {slot} turns to {self.goes_to[slot].name}"
            assert self.is_on[slot] in allowed, f"slot {slot} is on {self.is_on[slot].name} still"

    def advance(self, until: int) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.advance_one()

    def advance_one(self) -> None:
        _, what, slot, side = self.queue.pop(0)
        if what == "turn":
            self.is_on[slot] = side
        else:
            assert self.is_on[slot] in ({Side.DEVICE} if what == "write" else {Side.DEVICE, Side.BOTH})

    def touched(self, number: int) -> Iterator[tuple[int, bool]]:
        """The host memory that a step reads and writes; other devices compute in their own memory."""
        step = self.plan.steps[number]
        if isinstance(step, Copy) and HOST in (step.source, step.target):
            yield step.value, step.target == HOST
        elif isinstance(step, Call) and self.plan.agents[number] in {HOST, *self.plan.shared}:
            part = self.model.partitions[step.partition]
            yield from ((v, False) for v in part.inputs)
            yield from ((v, True) for v in part.outputs)


OTHERS = st.sets(st.sampled_from([CL1, VK])).map(lambda others: frozenset({LENDER, *others}))


DIRECT = st.sampled_from([frozenset[tuple[Space, Space]](), LINKED])
RUNS = st.lists(st.none() | st.integers(0, 30), min_size=3, max_size=3)  # the step that fails, if one does

READ_AFTER_ITS_COPY = variant(
    [
        *[("c", "x", "b"), ("c", "x", "d"), ("h", "x", "a"), ("c", "x", "e"), ("g", "a", "f"), ("h", "a", "i")],
        *[("c", "xf", "j"), ("c", "x", "k"), ("g", "j", "l")],
    ],
    inputs="xz",
    outputs="x",
)


# OPENCL.1 copies `a` to the host and then reads its own: that used to count as a use of the host's memory.
@example(READ_AFTER_ITS_COPY, frozenset({LENDER}), frozenset(), 0, 0.0, True, [None] * 3)
@given(
    chains("cghvi"),
    OTHERS,
    DIRECT,
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(),
    RUNS,
)
def test_nobody_touches_lent_memory_on_the_wrong_side(
    model: Variant,
    shared: frozenset[Space],
    direct: frozenset[tuple[Space, Space]],
    seed: int,
    laziness: float,
    reuse: bool,
    runs: list[int | None],
) -> None:
    machine = Machine(model, schedule(model, shared, direct), random.Random(seed), laziness, reuse)
    for fails_at in runs:  # the second run begins with the sides at the end of the first
        machine.run(fails_at)


def test_a_device_that_computes_in_its_own_memory_turns_none_and_nobody_waits_for_it() -> None:
    model = variant([("h", "x", "a"), ("g", "a", "b"), ("h", "a", "d"), ("c", "bd", "y")])
    plan = schedule(model, frozenset({CL}))
    borders, slots = borders_of(model, plan)
    a, b = slots[1], slots[2]
    call = plan.steps.index(Call(1))
    assert plan.steps.index(Call(2)) < call, "OPENCL.1 goes on while its result is on its way"
    assert borders.idle == {}
    assert borders.before[call] == {a: Side.DEVICE, b: Side.DEVICE}


def test_memory_comes_back_right_after_the_device_and_goes_right_before_it() -> None:
    model = variant([("c", "x", "a"), ("g", "a", "b"), ("c", "b", "y")])
    plan = schedule(model, frozenset({CL}))
    assert plan.steps == (Call(0), Call(1), Wait(Call(1)), Call(2))
    borders, slots = borders_of(model, plan)
    a, b = slots[1], slots[2]
    assert borders.before == {1: {a: Side.DEVICE, b: Side.DEVICE}}
    assert borders.after == {1: {a: Side.HOST, b: Side.HOST}}
    assert borders.rest == {}


def test_what_host_and_device_read_at_once_is_mapped_for_reading() -> None:
    model = variant([("g", "x", "a"), ("c", "x", "b"), ("c", "ab", "y")])
    borders, slots = borders_of(model, schedule(model, frozenset({CL})))
    assert borders.before[0] == {slots[0]: Side.BOTH, slots[1]: Side.DEVICE}
    assert borders.before[1] == {slots[0]: Side.BOTH}  # the host waits for it
    assert borders.rest == {slots[0]: Side.HOST}


def test_what_only_the_device_reads_after_it_stays_with_the_device() -> None:
    model = variant([("c", "x", "a"), ("g", "a", "b"), ("g", "ab", "y")])
    borders, slots = borders_of(model, schedule(model, frozenset({CL})))
    assert 2 not in slots
    assert borders.after == {2: {slots[1]: Side.HOST, slots[3]: Side.HOST}}
