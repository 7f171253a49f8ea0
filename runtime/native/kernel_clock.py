"""Timestamps of kernels on the plug-ins' devices, taken while at least one user in this process has started a clock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from heterocc.runtime import ffi as tvm_ffi

_LOCK = threading.Lock()
_USERS: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The timestamps of one back end's devices.

    Kernels that the calling thread launches after `time_for(owner, label)` are timed for that owner, up to the next
    call; owner 0 means none. `take(owner)` gives label and nanoseconds of the owner's finished kernels, -1 if the
    driver reported no time; those of one label are in launch order.
    """

    backend: str
    time_for: Callable[[int, int], None]
    take: Callable[[int], Iterable[tuple[int, int]]]

    @classmethod
    def of(cls, backend: str) -> KernelClock | None:
        """The clock of a back end; None without heterocc's plug-in, or if the user's TVM has the back end."""
        names = (f"heterocc.{backend}.time_for", f"heterocc.{backend}.take_profile")
        found = [tvm_ffi.get_global_func(name, allow_missing=True) for name in names]
        return None if None in found else cls(backend, *found)

    def start(self) -> None:
        """Switch timestamps on, unless another user did. Raises the plug-in's error if a driver refuses."""
        with _LOCK:
            if _USERS[self.backend] == 0:
                try:
                    self._switch(True)
                except BaseException:
                    with suppress(Exception):  # the first error has the cause
                        self._switch(False)
                    raise
            _USERS[self.backend] += 1

    def stop(self) -> None:
        """Switch timestamps off, unless another user still needs them."""
        with _LOCK:
            _USERS[self.backend] -= 1
            if _USERS[self.backend] == 0:
                self._switch(False)

    def _switch(self, enabled: bool) -> None:
        tvm_ffi.get_global_func(f"heterocc.{self.backend}.profiling")(enabled)
