"""Runs on arrays over the session's memory, without copies and allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from heterocc.artifacts.errors import FeedError
from heterocc.runtime.execute.chain import Context
from heterocc.runtime.feeds import Array, TensorInfo


class Binding:
    """A separate context: write into `inputs`, call `run`, read `outputs`. A run copies and allocates nothing.

    `inputs` and `outputs` map names to numpy arrays over the session's memory (64-byte aligned, C-contiguous). Inputs
    keep their contents from run to run; outputs are valid until the next run. An output that is a model input shares
    the input's array; an output that is a constant must not be written. Not thread-safe.

    Raises FeedError if an input or output has no static shape.
    """

    def __init__(
        self,
        context: Context,
        inputs: Iterable[tuple[TensorInfo, int]],
        outputs: Iterable[tuple[TensorInfo, int]],
        alive: Callable[[], object],
        run_on: Callable[[Context, Sequence[Any]], None],
    ) -> None:
        """For `Session.bind`: a context, tensors with the numbers of their values, the session's check and its run."""
        self._context = context
        self._alive = alive
        self._run_on = run_on
        self.inputs = self._views(inputs)
        self.outputs = self._views(outputs)
        for array in self.inputs.values():
            array.fill(0)

    def run(self) -> dict[str, Array]:
        """Run on the contents of `inputs` and return `outputs`. Raises the errors of `Session.run`."""
        self._alive()
        self._run_on(self._context, ())
        return self.outputs

    def _views(self, infos: Iterable[tuple[TensorInfo, int]]) -> dict[str, Array]:
        views: dict[str, Array] = {}
        for info, value in infos:
            array = self._context.arrays.get(value)
            if array is None:
                raise FeedError(
                    f"'{info.name}' does not have a static shape, so it cannot be bound", hint="use Session.run"
                )
            views[info.name] = array
        return views
