"""Traces of kernel outputs, for locating errors in a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterocc.artifacts.manifest import Kernel, Variant
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime import forks
from heterocc.runtime.execute.executable import Instrument, synchronizer
from heterocc.runtime.execute.memory import to_host
from heterocc.runtime.feeds import Array
from heterocc.runtime.plan.schedule import Schedule, Step


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """A kernel call that has just returned.

    `kernel` is its manifest record, None for a function that the manifest does not list. `outputs` are copies of the
    tensors that it wrote, in the order of `kernel.outputs` if the manifest has them; else its last tensor argument.
    """

    partition: int
    symbol: str
    kernel: Kernel | None
    outputs: tuple[Array, ...]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{array.dtype} {list(array.shape)}" for array in self.outputs)
        return f"<KernelTrace of {self.symbol} in partition {self.partition}: {shapes}>"


TraceCallback = Callable[[KernelTrace], None]


class Tap:
    """Observes one context and reports every kernel call of the wanted partitions.

    `error` is the exception that the callback raised, or None.
    """

    def __init__(self, variant: Variant, plan: Schedule, partition: int | None, callback: TraceCallback) -> None:
        self._variant = variant
        self._plan = plan
        self._wanted = partition
        self._callback = callback
        self.error: BaseException | None = None

    def instrument(self, partition: int) -> Instrument | None:
        """The hook that copies kernel outputs; None for partitions that are not traced."""
        if self._wanted not in (None, partition):
            return None
        wait = synchronizer(self._plan.spaces[partition])
        began = forks.generation
        known = {k.symbol: k for k in self._variant.partitions[partition].kernels}

        def hook(_function: Any, symbol: str, before: bool, _result: Any, *arguments: Any) -> int:
            if before or symbol.startswith("vm.builtin."):
                return 0
            if wait is not None:
                wait()
            kernel = known.get(symbol)
            tensors = [a for a in arguments if isinstance(a, tvm_ffi.Tensor)]
            count = len(kernel.outputs) if kernel is not None and kernel.outputs else 1
            trace = KernelTrace(partition, symbol, kernel, tuple(to_host(t) for t in tensors[-count:]))
            try:
                self._callback(trace)
            except BaseException as error:
                self.error = error  # TVM raises another error instead
                raise
            if forks.generation != began:
                self.error = forks.refusal("the callback forked this process in the middle of a run")
                raise self.error
            return 0

        return hook

    def wrap(self, step: Step, action: Callable[[], Any], wait: Callable[[], Any] | None) -> Callable[[], Any]:
        """Return the action unchanged."""
        return action
