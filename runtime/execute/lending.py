"""Execution of the turns of memory that a device lends to the host, for one context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.manifest import Variant
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.execute.inflight import InFlight, Settle
from heterocc.runtime.execute.transfer import lender, turner
from heterocc.runtime.native import plugin_function
from heterocc.runtime.plan.lending_turns import Borders, Side, Turns, plan_borders
from heterocc.runtime.plan.schedule import Call, Copy, Schedule, Space, Wait

Action = Callable[[], Any]
_Start = Callable[[], Settle]


def copying_notes(plan: Schedule) -> tuple[str, ...]:
    """A note that values are copied, for each device that shares the host's memory but whose driver cannot lend it."""
    notes = []
    for space in dict.fromkeys(plan.spaces):
        lends = plugin_function("opencl", "lends") if space.backend == "opencl" and space not in plan.shared else None
        if lends is None:
            continue
        from heterocc.runtime.native import opencl_devices

        device = opencl_devices()[space.index]
        if device.unified and not device.shares_host_memory and not lends(space.index):
            notes.append(f"{space} shares the host's memory, but its driver moves what it maps: values are copied")
    return tuple(notes)


class Lending:
    """The turns of a context's lent memory; none if no device lends memory that must be turned."""

    def __init__(
        self, plan: Schedule, variant: Variant, lent: Sequence[Any], slots: Mapping[int, int], *, all_rest: bool
    ) -> None:
        """`lent` is the memory by slot and `slots` the slot by value, as `Buffers` has them.

        Between runs callers use the model's inputs and outputs, or with `all_rest` every value.
        """
        self._lent = lent
        self._device = lender(plan.shared)
        turn = None if self._device is None or not lent else turner(self._device)
        borders = Borders({}, {}, {}, {})
        if turn is not None and self._device is not None:
            parts = variant.partitions
            resting = frozenset(slots) if all_rest else frozenset((*variant.inputs, *variant.outputs))
            borders = plan_borders(
                plan,
                {i: part.inputs for i, part in enumerate(parts)},
                {i: part.outputs for i, part in enumerate(parts)},
                self._device,
                slots,
                resting,
            )
        self._turn = turn
        self._idle = borders.idle
        self._before = {step: self._bound(turns) for step, turns in borders.before.items()}
        self._after = {step: self._bound(turns) for step, turns in borders.after.items()}
        self._rest = self._bound(borders.rest)
        self._all = self._bound(dict.fromkeys(range(len(lent)), Side.HOST))

    def wrap(self, number: int, step: Call | Copy | Wait, agent: Space, action: Action, flight: InFlight) -> Action:
        """The action of a step with the turns that come before and after it."""
        before, after, device = self._before.get(number), self._after.get(number), self._device
        idle = self._idle.get(number, frozenset())
        if device is None or isinstance(step, Wait) or (before is None and after is None):
            return action

        def turned() -> None:
            for other in idle:
                flight.drain(other)
            if before is not None:
                settle = before()
                if agent != device:
                    settle()
            action()
            if after is not None:
                flight.add(device, step, after())

        return turned

    def rest(self) -> None:
        """Hand the host the memory that callers use between runs. Raises DeviceError."""
        if self._rest is None:
            return
        try:
            self._rest()()
        except Exception as error:
            raise device_fault(error, "handing memory to the host", str(self._device)) from error

    def recover(self) -> None:
        """Hand all memory to the host after a failed run, when no work is under way.

        Memory that cannot be handed over now fails the next run that uses it.
        """
        with suppress(HeteroccError, RuntimeError, ValueError, OSError):
            if self._all is not None:
                self._all()()

    def _bound(self, turns: Turns) -> _Start | None:
        if not turns or self._turn is None:
            return None
        tensors = tvm_ffi.Array([self._lent[slot] for slot in turns])
        return partial(self._turn, tensors, tvm_ffi.Array([int(side) for side in turns.values()]))
