"""Errors as the answers of both protocols."""

from __future__ import annotations

from heterocc.artifacts.errors import BundleError, DeviceMemoryError, FileMissingError, HeteroccError, InputError
from heterocc.artifacts.text.one_line import one_line
from heterocc.runtime.serve.errors import (
    DeadlineError,
    ModelNotServedError,
    QueueFullError,
    ReceiveError,
    RequestError,
    RequestSizeError,
    ServiceEndingError,
)

_ANSWERS: tuple[tuple[type[HeteroccError], int, str], ...] = (
    (RequestError, 400, "INVALID_ARGUMENT"),
    (RequestSizeError, 413, "RESOURCE_EXHAUSTED"),
    (ModelNotServedError, 404, "NOT_FOUND"),
    (ServiceEndingError, 503, "UNAVAILABLE"),
    (QueueFullError, 429, "RESOURCE_EXHAUSTED"),
    (DeadlineError, 504, "DEADLINE_EXCEEDED"),
    (ReceiveError, 408, "DEADLINE_EXCEEDED"),
    (DeviceMemoryError, 503, "RESOURCE_EXHAUSTED"),
    (FileMissingError, 404, "NOT_FOUND"),
    (InputError, 400, "INVALID_ARGUMENT"),
    (BundleError, 500, "FAILED_PRECONDITION"),
    (HeteroccError, 500, "INTERNAL"),
)
"""The first class that fits counts."""


_LONGEST = 2000
"""Characters of a message, at most."""


def status_of(error: HeteroccError) -> tuple[int, str]:
    """HTTP's status and the name of gRPC's."""
    return next((http, grpc) for kind, http, grpc in _ANSWERS if isinstance(error, kind))


def text_of(error: HeteroccError) -> str:
    """The error in one line for clients, without its place: that is a path of the server. The log has all of it."""
    hint = f" ({_short(str(error.hint))})" if error.hint else ""
    return f"{error.code}: {_short(error.message)}{hint}"


def _short(text: str) -> str:
    """The text in one line of limited length: it may have names that the client sent."""
    return one_line(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
