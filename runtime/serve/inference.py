"""An inference request without its transport: checks against the model, and the work that a worker does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from heterocc.artifacts.errors import HeteroccError, InternalError, RequestError
from heterocc.runtime.feeds import Array, nearest
from heterocc.runtime.serve.models import Served, Tensor
from heterocc.runtime.serve.tensors import fits

Decode = Callable[[str, Sequence[int]], Array]

_UNSUPPORTED = ("sequence_id", "shared_memory_region", "classification")
"""Parameters that would change the meaning of a request. Others are ignored."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a request; `decode(datatype, shape)` makes its array."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    decode: Decode


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


def check_parameters(parameters: Mapping[str, Any], where: str = "the request") -> None:
    """Raise RequestError if a parameter asks for an extension that the service lacks."""
    for name in _UNSUPPORTED:
        if name in parameters and parameters[name] not in (0, "", False):
            raise RequestError(f"{where} has the parameter '{name}', which this service does not support")


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """The parameter `timeout`, in microseconds by the protocol, as seconds; 0 means none."""
    value = parameters.get("timeout", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError("the parameter 'timeout' must be a number of microseconds, 0 or more")
    return value / 1e6 if value else None


def run_request(served: Served, request: Request) -> list[Output]:
    """Decode, run and return the requested outputs. For a worker's thread.

    Raises RequestError before anything runs, and the errors of `Session.run`.
    """
    feed = _feed(served, request)
    wanted = _wanted(served, request)
    try:
        results = served.session.run(wanted, feed)
    except HeteroccError:
        raise
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}") from error
    return [Output(served.outputs[name], array) for name, array in zip(wanted, results, strict=True)]


def _feed(served: Served, request: Request) -> dict[str, Array]:
    feed: dict[str, Array] = {}
    for given in request.inputs:
        expected = served.inputs.get(given.name)
        if expected is None:
            _refuse(f"the model '{served.name}' has no input '{given.name}'", nearest(given.name, served.inputs))
        if given.name in feed:
            _refuse(f"input '{given.name}' is given twice")
        if given.datatype != expected.datatype:
            _refuse(f"input '{given.name}' must have the datatype {expected.datatype}, got {given.datatype}")
        if not fits(given.shape, expected.shape) or min(given.shape, default=0) < 0:
            shape = [-1 if d is None else d for d in expected.shape or ()]
            _refuse(f"input '{given.name}' must have the shape {shape}, got {list(given.shape)}")
        feed[given.name] = given.decode(given.datatype, given.shape)
    for name in served.inputs:
        if name not in feed:
            _refuse(f"input '{name}' is missing", f"the model's inputs: {', '.join(served.inputs)}")
    return feed


def _wanted(served: Served, request: Request) -> list[str]:
    if not request.outputs:
        return list(served.outputs)
    for name in request.outputs:
        if name not in served.outputs:
            _refuse(f"the model '{served.name}' has no output '{name}'", nearest(name, served.outputs))
    return list(request.outputs)


def _refuse(message: str, hint: str | None = None) -> NoReturn:
    raise RequestError(message, hint=hint)
