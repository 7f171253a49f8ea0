"""The order of a run's steps: copies start as soon as their value exists, and waits come as late as possible.

Devices execute their commands in order, asynchronously to the host. The host executes its partitions synchronously. So
a wait is needed only if the host, or a device that cannot wait for another by itself, reads a value that another device
may not have finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterocc.artifacts.frozen import frozen
from heterocc.runtime.plan.steps import HOST, Call, Copy, Space, Step, Wait


@frozen
class Flow:
    """The input of `issue`: partition `p` runs on `devices[p]` and reads and writes values in `homes[p]`.

    `needs` has the memories in which each value is read (the host's for outputs of the model). `direct` are the pairs
    of devices that copy without the host; the second then waits for the first by itself.
    """

    devices: Sequence[Space]
    homes: Sequence[Space]
    reads: Sequence[Sequence[int]]
    writes: Sequence[Sequence[int]]
    inputs: Sequence[int]
    outputs: Sequence[int]
    needs: Mapping[int, Sequence[Space]]
    direct: frozenset[tuple[Space, Space]]


@frozen
class Order:
    """Steps, and the agent of each: the host (also for waits) or a device.

    `seen[d]` are pairs of step numbers (from 1, ascending): after the second the host knows that device d has finished
    all its steps up to the first.
    """

    steps: tuple[Step, ...]
    agents: tuple[Space, ...]
    seen: Mapping[Space, Sequence[tuple[int, int]]]


def issue(flow: Flow, *, early: bool, reorder: bool) -> Order:
    """The steps of a run. Copies of results to the host always start right after the partition that writes them.

    With `early`, values are sent to devices as soon as they exist, else right before their first reader. With
    `reorder`, partitions with available inputs precede those that would have to wait, and devices' partitions precede
    the host's, so that all are busy. Otherwise partitions run in the order of `flow`.
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
        self._given: dict[Space, int] = {}  # device → number of its last step
        self.seen: dict[Space, list[tuple[int, int]]] = {}
        self._behind: dict[int, tuple[Space, int]] = {}  # step of one device → step of another before it
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
        """Wait for all devices, so that the caller may read results and change inputs."""
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
        """Return whether a partition that reads a value held in `places` makes the host wait."""
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
        if not isinstance(step, Wait):  # devices have no Wait steps
            self._note(self._agent(number), number, self._give(Wait(step), HOST))
            self._offer()

    def _note(self, device: Space, number: int, wait: int) -> None:
        """Record that after step `wait` a device has finished its steps up to `number`, with their dependencies."""
        before = self.seen[device][-1][0] if device in self.seen else 0
        if number <= before:
            return
        self.seen.setdefault(device, []).append((number, wait))
        for later, (other, earlier) in list(self._behind.items()):
            if before < later <= number and self._agent(later) == device:
                self._note(other, earlier, wait)

    def _send(self, value: int, target: Space) -> None:
        """Start a copy of a value to a memory, via the host if a direct copy is not possible."""
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
            if target in places:  # the wait started the copy
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
