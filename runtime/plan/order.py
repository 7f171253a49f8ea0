"""Puts the steps of a run in order: copies start as soon as their value exists, waits come as late as they may.

Every device does what it is given in order, beside the host. The host does partitions of its own at once. So a wait is
needed only where one touches what another one wrote: where the host, or a device that cannot be told to wait for
another, reads a value that a device may still be working on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heterocc.runtime.plan.steps import HOST, Call, Copy, Space, Step, Wait


@dataclass(frozen=True, slots=True)
class Flow:
    """What the order depends on: partition `p` runs on `devices[p]`, reads and writes values in `homes[p]`.

    `needs` gives, by value, the memories where it is read (the host's for outputs of the model). `direct` are the
    pairs of devices whose memories copy without the host; the second then waits for the first by itself.
    """

    devices: Sequence[Space]
    homes: Sequence[Space]
    reads: Sequence[Sequence[int]]
    writes: Sequence[Sequence[int]]
    inputs: Sequence[int]
    outputs: Sequence[int]
    needs: Mapping[int, Sequence[Space]]
    direct: frozenset[tuple[Space, Space]]


@dataclass(frozen=True, slots=True)
class Order:
    """Steps, and by step who does it: the host (which also does the waiting) or a device.

    `seen[d]` are pairs of step numbers (from 1, rising): after the second the host knows that device d has done all it
    was given up to the first.
    """

    steps: tuple[Step, ...]
    agents: tuple[Space, ...]
    seen: Mapping[Space, Sequence[tuple[int, int]]]


def issue(flow: Flow, *, early: bool, reorder: bool) -> Order:
    """The steps of a run. Results always start to come back right after the partition that writes them.

    With `early`, values are sent to devices as soon as they exist, else right before their first reader. With
    `reorder`, partitions whose inputs are there go before those that would have to wait, devices' before the host's:
    both keep busy. Without, partitions run in the order of `flow`.
    """
    state = _State(flow, early)
    left = list(range(len(flow.devices)))
    state.start()
    while left:
        chosen = min((p for p in left if state.can_run(p)), key=state.rank) if reorder else left[0]
        left.remove(chosen)
        state.call(chosen)
    state.finish()
    return Order(tuple(state.steps), tuple(state.agents), state.seen)


class _State:
    def __init__(self, flow: Flow, early: bool) -> None:
        self.flow = flow
        self.early = early
        self.steps: list[Step] = []
        self.agents: list[Space] = []
        self._held: dict[int, dict[Space, int]] = {}  # value → memory → number of the step that put it there
        self._given: dict[Space, int] = {}  # device → number of the last step that it was given
        self.seen: dict[Space, list[tuple[int, int]]] = {}
        self._behind: dict[int, tuple[Space, int]] = {}  # step of one device → step of another that it comes after
        self._open: dict[int, tuple[Space, ...]] = {}  # value → memories that still need it

    def start(self) -> None:
        for value in self.flow.inputs:
            self._hold(value, HOST, 0)
        self._offer()

    def can_run(self, partition: int) -> bool:
        return all(value in self._held for value in self.flow.reads[partition])

    def rank(self, partition: int) -> tuple[bool, bool, int]:
        device, home = self.flow.devices[partition], self.flow.homes[partition]
        stalls = any(self._stalls(self._held[v], device, home) for v in self.flow.reads[partition])
        return stalls, device == HOST, partition

    def call(self, partition: int) -> None:
        device, home = self.flow.devices[partition], self.flow.homes[partition]
        for value in self.flow.reads[partition]:
            self._send(value, home)
        for value in self.flow.reads[partition]:
            number = self._held[value][home]
            if self._agent(number) != device:
                self._wait(number)
        number = self._give(Call(partition), device)
        for value in self.flow.writes[partition]:
            self._hold(value, home, number)
        self._offer()

    def finish(self) -> None:
        """The caller finds results and may change inputs; nothing of the run is left to any device."""
        for value in self.flow.outputs:
            self._send(value, HOST)
        for value in self.flow.outputs:
            self._wait(self._held[value][HOST])
        for number in list(self._given.values()):
            self._wait(number)

    def _agent(self, number: int) -> Space:
        return self.agents[number - 1] if number else HOST

    def _done(self, number: int) -> bool:
        agent = self._agent(number)
        return agent == HOST or (agent in self.seen and number <= self.seen[agent][-1][0])

    def _stalls(self, places: Mapping[Space, int], device: Space, home: Space) -> bool:
        """Whether a partition that reads a value held in `places` would have the host wait."""
        if home in places:
            return self._agent(places[home]) != device and not self._done(places[home])
        if HOST in places and self._done(places[HOST]):
            return False
        return not any((place, home) in self.flow.direct for place in places)

    def _give(self, step: Step, agent: Space) -> int:
        self.steps.append(step)
        self.agents.append(agent)
        if agent != HOST:
            self._given[agent] = len(self.steps)
        return len(self.steps)

    def _wait(self, number: int) -> None:
        if self._done(number):
            return
        step = self.steps[number - 1]
        if not isinstance(step, Wait):  # devices are given none
            self._note(self._agent(number), number, self._give(Wait(step), HOST))
            self._offer()

    def _note(self, device: Space, number: int, wait: int) -> None:
        """The host knows from step `wait` on that a device has done all up to step `number`, and what came before."""
        before = self.seen[device][-1][0] if device in self.seen else 0
        if number <= before:
            return
        self.seen.setdefault(device, []).append((number, wait))
        for later, (other, earlier) in list(self._behind.items()):
            if before < later <= number and self._agent(later) == device:
                self._note(other, earlier, wait)

    def _send(self, value: int, target: Space) -> None:
        """Start to bring a value to a memory, by way of the host where there is no other."""
        places = self._held[value]
        if target in places:
            return
        source = next((p for p in places if (p, target) in self.flow.direct), HOST)
        if HOST in places and self._done(places[HOST]):
            source = HOST
        elif target == HOST:
            source = next(iter(places))
        elif source == HOST:
            self._send(value, HOST)
            self._wait(places[HOST])
            if target in places:  # the wait let it start
                return
        step = Copy(value, source, target)
        places[target] = number = self._give(step, step.carrier)
        if HOST not in (source, target):
            self._behind[number] = (source, self._given[source])

    def _hold(self, value: int, home: Space, number: int) -> None:
        self._held[value] = {home: number}
        self._open[value] = tuple(self.flow.needs.get(value, ()))

    def _offer(self) -> None:
        """Start what can start without waiting: results on their way to the host, and, if early, to devices."""
        for value in list(self._open):
            places = self._held[value]
            for target in self._open.get(value, ()):
                if target in places:
                    continue
                if HOST in places:
                    if self.early and self._done(places[HOST]):
                        self._send(value, target)
                elif target == HOST or not any((place, target) in self.flow.direct for place in places):
                    self._send(value, HOST)
                elif self.early:
                    self._send(value, target)
            left = tuple(target for target in self._open.get(value, ()) if target not in places)
            if left:
                self._open[value] = left
            else:
                self._open.pop(value, None)
