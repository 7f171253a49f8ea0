"""Runs of a loaded variant: inputs are copied or read in place, results are copied or written in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import Any

import numpy as np

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.manifest import Partition, Variant
from heterocc.runtime import forks
from heterocc.runtime.execute.chain import Context
from heterocc.runtime.execute.direct import go_home, write_to
from heterocc.runtime.execute.dynamic.any_size import run_of_any_size
from heterocc.runtime.execute.executable import Executable
from heterocc.runtime.execute.faults import first_line, offer
from heterocc.runtime.execute.ort import OrtPartition, Shapes, to_python
from heterocc.runtime.feeds import Array
from heterocc.runtime.native.cpu_runner import Run, RunValue, new_runner
from heterocc.runtime.plan.schedule import numpy_dtype
from heterocc.runtime.pool import ContextPool
from heterocc.runtime.select.select import labels, others_here
from heterocc.runtime.targets import fill_out

LOOK_NS = 1_000_000
"""Time in ns from a look at the bundle's file to the next: a system call takes as long as a small operator, and about
4 us where other code has filled the caches."""

MOST_SEEN = 4096
"""The shapes of inputs that are remembered; after that many, all are forgotten."""


_NO_RESULTS: dict[int, Array] = {}


def _too_large(error: MemoryError) -> DeviceMemoryError:
    """The error for results, or for values that Python code makes, for which there is not enough memory.

    Raises what a signal's handler raised as it is.
    """
    pass_foreign(error)
    return DeviceMemoryError(
        f"there is not enough memory for the results of a run: {first_line(error)}",
        where="the host",
        hint="close other sessions, or keep fewer results",
    )


class Runs:
    """Runs of one variant, from checked inputs to outputs. Thread-safe; each run has its own context."""

    def __init__(self, bundle: Bundle, variant: Variant, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """`inputs` and `outputs` are the model's names of the variant's."""
        self._bundle = bundle
        self._variant = variant
        self._inputs = tuple(inputs)
        self._names = tuple(outputs)
        self.fast = True
        """Whether `run_fast` may be of use."""
        self._verified = False
        self._ready = False
        self._looked = 0
        self._whole = False
        self._seen: set[Shapes] = set()

    def wait_verified(self) -> None:
        """Wait until the SHA-256 of every weight is checked. Raises BundleHashError if one differs."""
        if not self._verified:
            self._bundle.verify_weights()
            self._verified = True

    def run(
        self, pool: ContextPool, arrays: Sequence[Any], wanted: Sequence[int], targets: Mapping[str, Array]
    ) -> list[Any]:
        """Run on a context of the pool and return the outputs with these numbers. A context that fails is discarded.

        `arrays` are the inputs, in the variant's order; `targets` are the caller's arrays for outputs, by name.
        """
        context = pool.take()
        try:
            direct = self._place_results(context, arrays, wanted, targets) if context.direct else _NO_RESULTS
            self.run_on(context, arrays)
            results = [
                direct[i] if i in direct else self._result(context, i, targets.get(self._names[i])) for i in wanted
            ]
        except MemoryError as error:
            raise _too_large(error) from error
        if context.objects:
            context.objects.clear()
        if self._whole:
            self._remember(arrays)
        if context.direct:
            go_home(context.direct)
        pool.give_back(context)
        return results

    def run_fast(self, pool: ContextPool, feed: Any) -> dict[str, Any] | None:
        """All outputs for a feed that needs no conversion, by native code; None if `run` has to do it.

        It is for small models, in which Python code takes longer than the kernels do. Raises BundleHashError and
        BundleChangedError.
        """
        context = pool.take()
        run = context.run_fast or self._make_fast(context)
        if run is None:
            pool.give_back(context)
            return None
        if not self._ready:
            self._get_ready(context)
        self._look()
        entered = forks.enter()
        try:
            results = run(feed)
        except MemoryError as error:
            raise _too_large(error) from error
        finally:
            if entered:
                forks.leave()
        pool.give_back(context)
        return results

    def _make_fast(self, context: Context) -> Run | None:
        """The native function that runs a context, which keeps it; None, for all contexts, if there is none."""
        calls, movable = context.plain_calls, context.movable
        values = (*self._variant.inputs, *self._variant.outputs)
        if calls is not None and all(value in movable for value in values):
            named = [
                RunValue(name, movable[value].array, movable[value].pointer, movable[value].alignment)
                for name, value in zip((*self._inputs, *self._names), values, strict=True)
            ]
            count = len(self._inputs)
            context.run_fast = new_runner(named[:count], named[count:], calls)
        elif calls is None and (one := context.one_call) is not None:
            part, code = one
            if isinstance(code, Executable):
                context.run_fast = run_of_any_size(self._variant, part, code, self._inputs, self._names)
            else:
                context.run_fast = self._run_of_session(part, code)
                self._whole = context.run_fast is not None
        self.fast = context.run_fast is not None
        return context.run_fast

    def _run_of_session(self, part: Partition, session: OrtPartition) -> Run | None:
        """The native run of a model that is one ONNX Runtime session; None if Python code has to convert values."""
        variant = self._variant
        inputs = dict(zip(part.inputs, session.inputs, strict=True))
        outputs = dict(zip(part.outputs, session.outputs, strict=True))
        if set(inputs) != set(variant.inputs) or not set(variant.outputs) <= set(outputs):
            return None
        dtypes = [numpy_dtype(variant.values[v].dtype) for v in variant.inputs]
        # Texts of results are objects of Python already; those of inputs may have to become such.
        results = [numpy_dtype(variant.values[v].dtype) for v in variant.outputs if variant.values[v].dtype != "string"]
        if any(dtype is None for dtype in (*dtypes, *results)):  # by identity: numpy's float64 is equal to None
            return None
        return session.run_on_arrays(
            {name: inputs[v] for name, v in zip(self._inputs, variant.inputs, strict=True)},
            {name: outputs[v] for name, v in zip(self._names, variant.outputs, strict=True)},
            dtypes,
            self._seen,
        )

    def _remember(self, arrays: Sequence[Any]) -> None:
        """Note the shapes of a run that was right: a session does not know all that a model asks of them."""
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen.add(tuple([np.shape(array) for array in arrays]))

    def _place_results(
        self, context: Context, arrays: Sequence[Any], wanted: Sequence[int], targets: Mapping[str, Array]
    ) -> dict[int, Array]:
        """The results that code writes directly to the caller's or the returned array, by output."""
        placed: dict[int, Array] = {}
        for i in wanted:
            direct = context.direct.get(self._variant.outputs[i])
            if direct is None or i in placed:
                continue
            target = targets.get(self._names[i]) if targets else None
            if target is None:
                placed[i] = direct.result()
            elif write_to(direct, target, [*arrays, *placed.values()]):
                placed[i] = target
        return placed

    def run_on(self, context: Context, arrays: Sequence[Any]) -> None:
        """Run on a context whose outputs the caller reads from it; without `arrays`, on the contents of its inputs."""
        if not self._ready:
            self._get_ready(context)
        entered = forks.enter()
        try:
            self._feed_and_execute(context, arrays)
        finally:
            if entered:
                forks.leave()

    def _feed_and_execute(self, context: Context, arrays: Sequence[Any]) -> None:
        self._look()
        for array, (value, direct, place) in zip(arrays, context.feeds, strict=False):  # `arrays` may be empty
            if direct is not None and direct.move(array):
                continue
            if place is None:
                context.objects[value] = array
            else:
                place[...] = array
        try:
            context.execute()
        except DeviceError as error:
            offer(error, labels(self._variant), others_here(self._bundle.manifest, self._variant))
            raise
        if context.observer is not None:
            from heterocc.runtime.profile.recorder import Recorder  # sessions that do not profile never import it

            if isinstance(context.observer, Recorder):
                context.observer.runs += 1

    def _get_ready(self, context: Context) -> None:
        self.wait_verified()
        context.wait_arranged()
        self._ready = True

    def _look(self) -> None:
        """Look at the bundle's file from time to time. Raises BundleChangedError."""
        now = monotonic_ns()
        if now - self._looked > LOOK_NS:
            self._bundle.check_unchanged()
            self._looked = now

    def _result(self, context: Context, index: int, target: Array | None) -> Any:
        value = self._variant.outputs[index]
        array = context.arrays.get(value)
        if array is None:
            result = to_python(context.objects[value])
            return result if target is None else fill_out(self._names[index], target, result, self._bundle.path)
        if target is None:
            return array.copy()
        np.copyto(target, array)
        return target
