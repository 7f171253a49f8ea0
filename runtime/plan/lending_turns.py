"""The turns of lent memory between host and device, planned by a pure function of the run order.

Lent memory (`heterocc.opencl.lend`) is a buffer that host and device share, one side at a time: the driver maps it for
the host and unmaps it for kernels; if it is mapped for reading, both may read. A turn is a command in the device's
queue. Later commands of the device follow it; the host must wait for it.

After a device's last use before the host's, memory turns to the host immediately, so that a wait for that use includes
the turn. Turns that only the host needs come right before its step, which waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from heterocc.artifacts.frozen import frozen
from heterocc.runtime.plan.schedule import HOST, Call, Copy, Schedule, Space, Wait
from heterocc.runtime.plan.steps import Step


class Side(IntEnum):
    """The side that may use lent memory; the numbers are those of `lent.h`."""

    DEVICE = 0
    BOTH = 1
    HOST = 2


Turns = Mapping[int, Side]
"""Slots, and the sides to which they turn."""


@frozen
class Borders:
    """Turns by step number (0 is before the first step).

    `before[i]` come before step i. The host first waits for the devices in `idle[i]`, which may still use the memory,
    and then for the turns, unless the device itself executes the step. `after[i]` come after step i of the device, and
    a wait for the step includes them. `rest` come after all steps, and the host waits for them, because the caller
    reads and writes then.
    """

    idle: Mapping[int, frozenset[Space]]
    before: Mapping[int, Turns]
    after: Mapping[int, Turns]
    rest: Turns


@frozen
class _Touch:
    step: int
    agent: Space
    value: int
    writes: bool


def plan_borders(
    plan: Schedule,
    reads: Mapping[int, tuple[int, ...]],
    writes: Mapping[int, tuple[int, ...]],
    device: Space,
    slots: Mapping[int, int],
    resting: frozenset[int],
) -> Borders:
    """The turns of the slots that `device` lends.

    `reads` and `writes` are the values of each partition, `slots` the slot of each value that the device and others
    access, `resting` the values that callers read and write between runs.
    """
    idle: dict[int, frozenset[Space]] = {}
    before: dict[int, dict[int, Side]] = {}
    after: dict[int, dict[int, Side]] = {}
    rest: dict[int, Side] = {}
    touches = _touches(plan, reads, writes, slots)
    waits = _waits(plan)
    for slot in dict.fromkeys(slots.values()):
        here = [t for t in touches if slots[t.value] == slot]
        sides = _sides(here, device)
        if any(value in resting for value, place in slots.items() if place == slot):
            here.append(_Touch(len(plan.steps), HOST, -1, writes=True))
            sides.append(Side.HOST)
        awaited = True  # whether the host has waited for the turn to the present side
        for number, (touch, side) in enumerate(zip(here, sides, strict=True)):
            last, held = here[number - 1], sides[number - 1]
            mine = touch.agent == device
            at = rest if touch.step == len(plan.steps) else before.setdefault(touch.step, {})
            if number == 0 and mine:
                at[slot] = side  # the side after the previous run is unknown
                awaited = False
            elif held != side:
                if last.agent == device and held == Side.DEVICE:
                    after.setdefault(last.step, {})[slot] = side
                    awaited = True
                else:
                    at[slot] = side
                    awaited = not mine
                    # Uses of the slot's previous values are over, because slots are reused only then.
                    own = [t for t in here[:number] if t.value == touch.value and t.agent not in (HOST, device)]
                    others = {t.agent for t in own if not _is_over(t, touch.step, waits)}
                    if others:
                        idle[touch.step] = idle.get(touch.step, frozenset()) | others
            elif not mine and not awaited:
                at[slot] = side
                awaited = True
    return Borders(idle, {s: t for s, t in before.items() if t}, after, rest)


def _sides(touches: list[_Touch], device: Space) -> list[Side]:
    """The side of a slot for each access; accesses are in run order.

    From the first access at which others may read a value at the same time as the device, it is on both sides.
    """
    found = []
    for touch in touches:
        alone = Side.DEVICE if touch.agent == device else Side.HOST
        if touch.writes:
            found.append(alone)
            continue
        readers = [t for t in touches if t.value == touch.value and not t.writes]
        first = min((t.step for t in readers if t.agent == device), default=None)
        beside = [
            t.step for t in readers if first is not None and t.agent != device and (t.agent != HOST or t.step > first)
        ]
        together = bool(beside) and (touch.agent == device or touch.step >= min(beside))
        found.append(Side.BOTH if together else alone)
    return found


def _touches(
    plan: Schedule,
    reads: Mapping[int, tuple[int, ...]],
    writes: Mapping[int, tuple[int, ...]],
    slots: Mapping[int, int],
) -> list[_Touch]:
    found = []
    at_home = {HOST, *plan.shared}  # these compute in host memory; others compute in their own, and copy
    for number, (step, agent) in enumerate(zip(plan.steps, plan.agents, strict=True)):
        used = _used(step, reads, writes, computes_there=agent in at_home)
        found += [_Touch(number, agent, v, w) for v, w in used if v in slots]
    return found


def _waits(plan: Schedule) -> dict[Space, list[tuple[int, int]]]:
    """By device, the steps that the host waits for, each with the step of the wait."""
    numbers = {step: number for number, step in enumerate(plan.steps)}
    found: dict[Space, list[tuple[int, int]]] = {}
    for step, number in numbers.items():
        if isinstance(step, Wait):
            awaited = numbers[step.step]
            found.setdefault(plan.agents[awaited], []).append((awaited, number))
    return found


def _is_over(touch: _Touch, before: int, waits: Mapping[Space, list[tuple[int, int]]]) -> bool:
    """Return whether the host has waited for a device's access before a step."""
    return any(touch.step <= awaited and number < before for awaited, number in waits.get(touch.agent, ()))


def _used(
    step: Step,
    reads: Mapping[int, tuple[int, ...]],
    writes: Mapping[int, tuple[int, ...]],
    *,
    computes_there: bool,
) -> list[tuple[int, bool]]:
    """The values that a step accesses in host memory, each with whether it is written."""
    if isinstance(step, Copy):
        return [(step.value, step.target == HOST)] if HOST in (step.source, step.target) else []
    if isinstance(step, Call) and computes_there:
        used = [(v, False) for v in dict.fromkeys(reads.get(step.partition, ()))]
        return used + [(v, True) for v in writes.get(step.partition, ())]
    return []
