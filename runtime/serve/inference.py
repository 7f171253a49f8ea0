"""An inference request without its transport: checks against the model, and the work that a worker does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Generic, NoReturn, TypeVar

from heterocc.artifacts.errors import HeteroccError, InternalError
from heterocc.runtime.feeds import Array, nearest
from heterocc.runtime.loading.replacing import constant_text
from heterocc.runtime.serve.batches import Share, join, split
from heterocc.runtime.serve.errors import RequestError
from heterocc.runtime.serve.models import Served, Tensor
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.telemetry.statistics import Timing
from heterocc.runtime.serve.tensors import decoded_bytes, fits, is_array_shape

T = TypeVar("T")

Decode = Callable[[str, Sequence[int]], Array]

_UNSUPPORTED = ("sequence_id", "shared_memory_region", "classification")
"""Parameters that would change the meaning of a request. Others are ignored."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a request; `decode(datatype, shape)` makes its array from `size` bytes of data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    decode: Decode
    size: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request in either protocol. `outputs` None means all; `timeout` is in seconds from its arrival."""

    id: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...] | None
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a request; `array` has the model's own dtype."""

    tensor: Tensor
    array: Array


def share_of(served: Served, request: Request) -> Share | None:
    """The share of a request in a batch; None if its inputs have no common number of rows, or replace constants."""
    if any(given.name not in served.inputs for given in request.inputs):
        return None
    shapes = [given.shape for given in request.inputs]
    rows = {shape[0] if shape else 0 for shape in shapes}
    if len(rows) != 1 or min(rows) < 1 or len({given.name for given in request.inputs}) < len(shapes):
        return None
    key = sorted((given.name, given.datatype, given.shape[1:]) for given in request.inputs)
    return Share(tuple(key), rows.pop())


def check_parameters(parameters: Mapping[str, Any], where: str = "the request") -> None:
    """Raise RequestError if a parameter asks for an extension that the service lacks."""
    for name in _UNSUPPORTED:
        if name in parameters and parameters[name] not in (0, "", False):
            raise RequestError(f"{where} has the parameter '{name}', which this service does not support")


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """The parameter `timeout`, in microseconds by the protocol, as seconds; 0 means none."""
    value = parameters.get("timeout", 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise RequestError("the parameter 'timeout' must be a number of microseconds, 0 or more, in 63 bits")
    return value / 1e6 if value else None


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """A request for a worker, which calls it; `encode` makes the answer of its outputs."""

    served: Served
    request: Request
    encode: Callable[[Sequence[Output]], T]
    timing: Timing = field(default_factory=Timing)

    def __call__(self) -> T:
        """Decode, run and encode. Raises RequestError before anything runs, and the errors of `Session.run`."""
        began = perf_counter_ns()
        feed, wanted = _feed(self.request), _wanted(self.served, self.request)
        decoded = perf_counter_ns()
        results = _run(self.served, wanted, feed)
        self.timing.decode, self.timing.run = decoded - began, perf_counter_ns() - decoded
        self.timing.counts = True
        return self.answer(wanted, results)

    def answer(self, wanted: Sequence[str], results: Sequence[Array]) -> T:
        """The answer of results, which have these names."""
        began, outputs = perf_counter_ns(), self.served.outputs
        answer = self.encode([Output(outputs[name], array) for name, array in zip(wanted, results, strict=True)])
        self.timing.encode = perf_counter_ns() - began
        return answer


def run_together(works: Sequence[Work[T]]) -> list[tuple[T | None, BaseException | None]]:
    """The outcomes of requests that run as one batch, each with its own error.

    A request that is malformed does not run. If the batch fails, each of its requests runs alone, so that an error
    reaches only the request that it belongs to.
    """
    outcomes: list[tuple[T | None, BaseException | None]] = [(None, None)] * len(works)
    feeds: dict[int, dict[str, Array]] = {}
    wanted: dict[int, list[str]] = {}
    for place, work in enumerate(works):
        began = perf_counter_ns()
        try:
            feeds[place], wanted[place] = _feed(work.request), _wanted(work.served, work.request)
        except Exception as error:
            outcomes[place] = (None, error)
            feeds.pop(place, None)
        work.timing.decode = perf_counter_ns() - began
    if not feeds:
        return outcomes
    served = works[0].served
    names = [name for name in served.outputs if any(name in wanted[place] for place in feeds)]
    counts = [next(iter(feed.values())).shape[0] for feed in feeds.values()]
    parts: dict[int, list[Array]] = {}
    began = perf_counter_ns()
    try:
        results = _run(served, names, join(list(feeds.values())))
        parts = dict(zip(feeds, split(results, counts), strict=True))
    except (HeteroccError, ValueError):
        pass  # each runs alone below
    run = perf_counter_ns() - began
    for place in feeds:
        work = works[place]
        try:
            if place in parts:
                work.timing.run, work.timing.counts = run, place == min(parts)
                found = dict(zip(names, parts[place], strict=True))
                outcomes[place] = (work.answer(wanted[place], [found[name] for name in wanted[place]]), None)
            else:
                outcomes[place] = (work(), None)
        except Exception as error:
            outcomes[place] = (None, error)
    return outcomes


def _run(served: Served, wanted: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
    try:
        return served.session.run(wanted, feed)
    except HeteroccError:
        raise
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}") from error
    finally:
        served.note_run()


def check_request(served: Served, request: Request) -> int:
    """Compare a request with its model, before its data is read. Raises RequestError.

    Returns the bytes that its arrays will take at most, beside the data.
    """
    total, seen = 0, set()
    for given in request.inputs:
        name = shown(given.name)
        expected = served.inputs.get(given.name) or served.replaceable.get(given.name)
        if expected is None:
            if given.name in served.session.bundle.manifest.model.held:
                _refuse(constant_text(given.name), "leave it out")
            _refuse(f"the model '{served.name}' has no input '{name}'", nearest(given.name, served.inputs))
        if given.name in seen:
            _refuse(f"input '{name}' is given twice")
        seen.add(given.name)
        if given.datatype != expected.datatype:
            _refuse(f"input '{name}' must have the datatype {expected.datatype}, got {shown(given.datatype)}")
        if not fits(given.shape, expected.shape):
            shape = [-1 if d is None else d for d in expected.shape or ()]
            _refuse(f"input '{name}' must have the shape {shape}, got {shown(str(list(given.shape)))}")
        if min(given.shape, default=0) < 0:
            _refuse(f"input '{name}' has the shape {shown(str(list(given.shape)))}: the sizes must be 0 or more")
        if not is_array_shape(given.shape):
            _refuse(f"input '{name}' has the shape {shown(str(list(given.shape)))}, which no array can have")
        total += decoded_bytes(given.datatype, given.shape, given.size)
    for name in served.inputs:
        if name not in seen and name not in served.session.bundle.manifest.model.defaults:
            _refuse(f"input '{name}' is missing", f"the model's inputs: {', '.join(served.inputs)}")
    _wanted(served, request)
    return total if served.line.batching is None else 2 * total


def _feed(request: Request) -> dict[str, Array]:
    return {given.name: given.decode(given.datatype, given.shape) for given in request.inputs}


def _wanted(served: Served, request: Request) -> list[str]:
    if not request.outputs:
        return list(served.outputs)
    for name in request.outputs:
        if name not in served.outputs:
            _refuse(f"the model '{served.name}' has no output '{shown(name)}'", nearest(name, served.outputs))
    if len(set(request.outputs)) < len(request.outputs):
        _refuse("an output is requested twice")
    return list(request.outputs)


def _refuse(message: str, hint: str | None = None) -> NoReturn:
    raise RequestError(message, hint=hint)
