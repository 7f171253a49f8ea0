"""When memory that a device lends goes from the host to the device and back: a pure function of the run order.

Lent memory (`heterocc.opencl.lend`) is one buffer that both see, on one side at a time: the driver maps it for the host
and unmaps it for kernels; mapped for reading, both may read. A turn is given to the device's queue, so what the device
does later comes after it, and the host must wait for it.

After the device's last use for now memory goes to the host's side at once: whoever waits for that use waits for the
turn as well. Turns that the host alone has need of come right before its step, and it waits for them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from heterocc.runtime.plan.schedule import HOST, Call, Copy, Schedule, Space, Wait
from heterocc.runtime.plan.steps import Step


class Side(IntEnum):
    """Who may use lent memory; the numbers are those of `lent.h`."""

    DEVICE = 0
    BOTH = 1
    HOST = 2


Turns = Mapping[int, Side]
"""Slots, and the sides that they are brought to."""


@dataclass(frozen=True, slots=True)
class Borders:
    """Turns by step number (0 is before the first step).

    `before[i]` come before step i; the host waits for them unless the device itself does the step, and first waits for
    the devices in `idle[i]`, which may still use what is turned. `after[i]` come after a step of the device, and
    waiting for the step is waiting for them. `rest` come when all is done, and the host waits for them: the caller
    reads and writes then.
    """

    idle: Mapping[int, frozenset[Space]]
    before: Mapping[int, Turns]
    after: Mapping[int, Turns]
    rest: Turns


@dataclass(frozen=True, slots=True)
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

    `reads` and `writes` are the values of each partition, `slots` where each value lies that the device and others
    touch, `resting` the values that callers read and write between runs.
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
                at[slot] = side  # whatever the run before has left it on
                awaited = False
            elif held != side:
                if last.agent == device and held == Side.DEVICE:
                    after.setdefault(last.step, {})[slot] = side
                    awaited = True
                else:
                    at[slot] = side
                    awaited = not mine
                    # Uses of the values that lay here before are over: memory is not given on until they are.
                    own = [t for t in here[:number] if t.value == touch.value and t.agent not in (HOST, device)]
                    others = {t.agent for t in own if not _is_over(t, touch.step, waits)}
                    if others:
                        idle[touch.step] = idle.get(touch.step, frozenset()) | others
            elif not mine and not awaited:
                at[slot] = side
                awaited = True
    return Borders(idle, {s: t for s, t in before.items() if t}, after, rest)


def _sides(touches: list[_Touch], device: Space) -> list[Side]:
    """The side of a slot in each of the touches, which are in run order.

    Once others than the device may still read a value while the device does, all read it on both sides to its end.
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
    at_home = {HOST, *plan.shared}  # who computes in host memory; others compute in their own, and copy
    for number, (step, agent) in enumerate(zip(plan.steps, plan.agents, strict=True)):
        used = _used(step, reads, writes, computes_there=agent in at_home)
        found += [_Touch(number, agent, v, w) for v, w in used if v in slots]
    return found


def _waits(plan: Schedule) -> dict[Space, list[tuple[int, int]]]:
    """By device, the steps that the host waits for, each with the step in which it does."""
    numbers = {step: number for number, step in enumerate(plan.steps)}
    found: dict[Space, list[tuple[int, int]]] = {}
    for step, number in numbers.items():
        if isinstance(step, Wait):
            awaited = numbers[step.step]
            found.setdefault(plan.agents[awaited], []).append((awaited, number))
    return found


def _is_over(touch: _Touch, before: int, waits: Mapping[Space, list[tuple[int, int]]]) -> bool:
    """Whether the host has waited for a device's touch before a step."""
    return any(touch.step <= awaited and number < before for awaited, number in waits.get(touch.agent, ()))


def _used(
    step: Step,
    reads: Mapping[int, tuple[int, ...]],
    writes: Mapping[int, tuple[int, ...]],
    *,
    computes_there: bool,
) -> list[tuple[int, bool]]:
    """The values that a step touches in host memory, each with whether it writes it."""
    if isinstance(step, Copy):
        return [(step.value, step.target == HOST)] if HOST in (step.source, step.target) else []
    if isinstance(step, Call) and computes_there:
        used = [(v, False) for v in dict.fromkeys(reads.get(step.partition, ()))]
        return used + [(v, True) for v in writes.get(step.partition, ())]
    return []
