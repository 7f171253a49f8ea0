"""Runs on arrays over the session's memory, and runs whose results are inputs of the next one, without copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import numpy as np

from heterocc.artifacts.errors import FeedError
from heterocc.runtime.execute.chain import Context
from heterocc.runtime.feeds import Array, InputCheck, TensorInfo, nearest
from heterocc.runtime.native import cpu_api


class BoundArrays(Mapping[str, Array]):
    """The arrays of a binding by name. They stay the same: a run reads and writes their memory.

    To assign to an input copies into its array, after the checks of `Session.run`. To assign to an output is an error.
    """

    __slots__ = ("_arrays", "_checks", "_where")

    def __init__(self, arrays: Mapping[str, Array], where: str, checks: Mapping[str, InputCheck] | None = None) -> None:
        """`checks` are those of inputs, by name; None for outputs."""
        self._arrays = dict(arrays)
        self._where = where
        self._checks = checks

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<arrays {_described(self._arrays)}>"

    def __setitem__(self, name: str, value: Any) -> None:
        kind = "output" if self._checks is None else "input"
        if name not in self._arrays:
            raise FeedError(f"the model has no {kind} '{name}'", where=self._where, hint=nearest(name, self._arrays))
        if self._arrays[name] is value:  # what `inputs[name] += 1` assigns
            return
        if self._checks is None:
            hint = f"copy what a run wrote: outputs['{name}'].copy()"
            raise FeedError(f"the array of output '{name}' cannot be replaced", where=self._where, hint=hint)
        np.copyto(self._arrays[name], self._checks[name](value))


class Binding:
    """A separate context: write into `inputs`, call `run`, read `outputs`. A run copies and allocates nothing.

    `inputs` and `outputs` map names to numpy arrays over the session's memory (64-byte aligned, C-contiguous). Inputs
    have zeros at first, or the values that the model has for them, and keep their contents from run to run;
    `inputs[name] = array` copies into the session's memory. Outputs are valid until the next run. An output that is a
    model input shares the input's array; an output that is a constant must not be written. Not thread-safe.

    Raises FeedError if an input or output has no static shape.
    """

    def __init__(
        self,
        context: Context,
        inputs: Iterable[tuple[TensorInfo, int]],
        outputs: Iterable[tuple[TensorInfo, int]],
        alive: Callable[[], object],
        run_on: Callable[[Context, Sequence[Any]], None],
        where: str,
        values: Mapping[str, Any],
        shown: Set[str],
    ) -> None:
        """For `Session.bind`: a context, tensors with the numbers of their values, the session's check and its run.

        `where` is the bundle, for errors. `values` are those of inputs at first; inputs that are not `shown` keep them.
        """
        self._context = context
        self._alive = alive
        self._run_on = run_on
        taken = []
        for info, value in inputs:
            if info.name in shown:
                taken.append((info, value))
            elif (array := context.arrays.get(value)) is not None:
                np.copyto(array, values[info.name])
            else:
                context.objects[value] = values[info.name]
        checks = {info.name: InputCheck(info, where) for info, _ in taken}
        self._inputs = BoundArrays(self._views(taken), where, checks)
        self._outputs = BoundArrays(self._views(outputs), where)
        for name, array in self._inputs.items():
            if name in values:
                np.copyto(array, values[name])
            else:
                array.fill(0)

    @property
    def inputs(self) -> BoundArrays:
        """The arrays that a run reads, by name."""
        return self._inputs

    @property
    def outputs(self) -> BoundArrays:
        """The arrays that a run writes, by name."""
        return self._outputs

    def __repr__(self) -> str:
        return f"<Binding: ({_described(self.inputs)}) -> ({_described(self.outputs)})>"

    def run(self) -> BoundArrays:
        """Run on the contents of `inputs` and return `outputs`. Raises the errors of `Session.run`."""
        self._alive()
        self._run_on(self._context, ())
        return self._outputs

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


class StatefulBinding:
    """Runs whose outputs are inputs of the next run: keys and values of a language model, the state of a recurrence.

    The first run needs all inputs. Later ones read what the last one wrote for the inputs in `state`, unless their feed
    has arrays for these, which begins anew. On the CPU nothing is copied: a result whose size changes stays in the
    memory that code wrote it to, one of a fixed size has two arrays in turns. Where code appends rows to an input, as
    keys of new tokens to earlier ones, it does so in memory with room for more rows, and writes the new ones alone. On
    other devices state goes through memory of the host. A run that fails leaves the state as it was. Not thread-safe.
    """

    def __init__(
        self,
        run: Callable[[Mapping[str, Any], Mapping[str, Array] | None], dict[str, Any]],
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        pairs: Mapping[str, str],
        where: str,
    ) -> None:
        """For `Session.bind`: the session's run, its tensors, and the output for each input of the state.

        Raises FeedError if an output cannot be that input.
        """
        takes, gives = {i.name: i for i in inputs}, {o.name: o for o in outputs}
        for name, source in pairs.items():
            for known, wanted, kind in ((takes, name, "input"), (gives, source, "output")):
                if wanted not in known:
                    raise FeedError(f"the model has no {kind} '{wanted}'", where=where, hint=nearest(wanted, known))
            _check_pair(takes[name], gives[source], where)
        self._run = run
        self._where = where
        self._pairs = dict(pairs)
        self._results = frozenset(pairs.values())
        self._fixed = tuple(o for o in self._results if _is_fixed(gives[o]))
        self._lengthened = {name for name, source in pairs.items() if source not in self._fixed}
        self._offered: set[str] = set()
        self._state: dict[str, Any] = {}
        self._written: dict[str, Array] = {}
        self._spare: dict[str, Array] = {}

    @property
    def state(self) -> Mapping[str, Any]:
        """The arrays that the next run reads, by input; empty before the first run.

        Those of a fixed size are valid until the next run. Others are read-only and keep what they hold; their elements
        may not be contiguous.
        """
        return MappingProxyType(
            {n: a if self._pairs[n] in self._fixed else _read_only(a) for n, a in self._state.items()}
        )

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Run on `feed` and the state; return the outputs that are not part of it. Raises the errors of Session.run."""
        require_names(feed, "inputs", self._where)
        found = self._run({**self._state, **feed}, self._spare or None)
        for name, source in self._pairs.items():
            if name in self._lengthened:
                found[source] = self._offer(name, found[source], fed=name in feed)
            self._state[name] = found[source]
        for source in self._fixed:
            before = self._written.get(source)
            if before is not None:
                self._spare[source] = before
            self._written[source] = found[source]
        return {name: value for name, value in found.items() if name not in self._results}

    def _offer(self, name: str, array: Any, *, fed: bool) -> Any:
        """A result as an array to which the next run can append rows in memory with room for more.

        Code that does not, although the input was such an array and not one of the feed, is not asked again.
        """
        if not isinstance(array, np.ndarray) or not array.nbytes or not array.flags.c_contiguous:
            return array
        dtype = array.dtype
        if dtype.kind in "fiu":
            found = cpu_api.appendable(array)
        elif dtype.name == "bfloat16":  # which numpy does not know
            bits = cpu_api.appendable(array.view(np.uint16))
            found = None if bits is None else bits.view(dtype)
        else:
            return array
        if found is None:
            return array
        if name in self._offered and not fed:
            self._lengthened.discard(name)
            return array
        self._offered.add(name)
        return found

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name} from {source}" for name, source in self._pairs.items())
        return f"<StatefulBinding: {pairs}; {'with' if self._state else 'without'} state>"

    def reset(self) -> None:
        """Forget the state: the next run needs all inputs."""
        self._state.clear()


def require_names(given: object, what: str, where: str) -> None:
    """Raise FeedError (HC110) for what a caller gives without the names of inputs."""
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise FeedError(f"{what} are given by the names of inputs, not as {kind}", where=where, hint='such as {"x": …}')


def _described(arrays: Mapping[str, Array]) -> str:
    """Names, dtypes and shapes: `x: float32 [1, 3]`."""
    return ", ".join(f"{name}: {array.dtype} {list(array.shape)}" for name, array in arrays.items())


def _read_only(array: Any) -> Any:
    """An array through which nobody can write to the state; other values as they are."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _is_fixed(info: TensorInfo) -> bool:
    return info.shape is not None and all(isinstance(d, int) for d in info.shape)


def _check_pair(given: TensorInfo, result: TensorInfo, where: str) -> None:
    """Raise FeedError unless an output may have the dtype and shape of an input."""
    fits = given.dtype == result.dtype
    if fits and given.shape is not None and result.shape is not None:
        dims = zip(given.shape, result.shape, strict=False)
        clash = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in dims)
        fits = len(given.shape) == len(result.shape) and not clash
    if not fits:
        raise FeedError(
            f"output '{result}' cannot be input '{given}' of the next run",
            where=where,
            hint="an input and the output bound to it need one dtype, rank and shape",
        )
