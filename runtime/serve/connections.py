"""Connections of the HTTP port: their number, the time that clients may take, and the size of what they send.

The server library uvicorn bounds none of these: it accepts connections until the process has no files left, waits for
a request forever, and keeps headers and pipelined requests of any number.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
from asyncio import TimerHandle
from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.serve.answers import text_of
from heterocc.runtime.serve.errors import ReceiveError, RequestError, RequestSizeError
from heterocc.runtime.serve.options import RATE
from heterocc.runtime.serve.upgrades import Parser

ABORT = "heterocc.abort"
"""In the state of a scope: closes its connection at once."""

_HEAD = 1 << 16
"""Bytes of a request beside its body, at most."""

_SLICE = 1 << 14
"""Bytes that are parsed in one go: requests of 18 bytes each take their time."""

_PARSING = 0.005
"""Seconds of parsing after which other work has a turn."""

_PIPELINED = 16
"""Requests that may wait for the answer of the one before, on one connection."""

_IGNORED = 1 << 24
"""Bytes of a body that are received after the answer to it, so that a client that sends all first can read it."""

_CLOSING = 16
"""Connections that may be about to end beside the others, at most."""

_OTHER_FILES = 96
"""Files that the process may need beside its connections and the bundles."""

_log = logging.getLogger(__name__)


def most_connections(wanted: int, bundles: int, files: int) -> int:
    """The number of connections for each port; fewer than wanted if the process may not have the files.

    `files` are those of one connection to each port. The soft limit of files is raised to the hard one first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass
    if soft == resource.RLIM_INFINITY:
        return wanted
    possible = max((soft - _OTHER_FILES - 4 * bundles) // files, 4)
    if possible < wanted:
        _log.warning("fewer connections", extra={"connections": possible, "wanted": wanted, "limit_of_files": soft})
    return min(possible, wanted)


class Listener(socket.socket):
    """A listening socket that closes what it accepts beyond a number of connections.

    `silent` are connections that have sent nothing, the oldest first, each with what ends it: they make room for new
    ones, so that many who only connect keep no others away.
    """

    most: int = 1
    count: int = 0

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self.silent: dict[object, Callable[[], None]] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """A connection and its address. Raises ConnectionAbortedError if there are too many."""
        descriptor, address = self._accept()  # type: ignore[attr-defined]
        if self.count >= self.most and not self._make_room():
            socket.close(descriptor)
            _log.warning("connections are refused", extra={"connections": self.count})
            raise ConnectionAbortedError
        self.count += 1
        return _Accepted(self, descriptor), address

    def _make_room(self) -> bool:
        if not self.silent or self.count >= self.most + _CLOSING:
            return False
        self.silent.pop(next(iter(self.silent)))()
        _log.warning("connections that sent nothing are closed for others", extra={"connections": self.count})
        return True


class _Accepted(socket.socket):
    """A connection that its listener counts until it is closed."""

    def __init__(self, listener: Listener, descriptor: int) -> None:
        self._listener: Listener | None = listener
        super().__init__(listener.family, listener.type, listener.proto, fileno=descriptor)
        self.setblocking(False)

    def close(self) -> None:
        """Close it."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.count -= 1
        super().close()


class Connection(HttpToolsProtocol):
    """A connection whose client has a limited time to send a request and to take what is sent to it."""

    seconds: ClassVar[float] = 60.0
    silent: ClassVar[dict[object, Callable[[], None]]] = {}
    """Of the listener."""

    _timer: TimerHandle | None = None
    _writing: TimerHandle | None = None
    _began = 0.0
    _received = 0
    _quiet = 0  # bytes since the last progress of a request
    _ignored = 0
    _rest = b""

    # ---- the connection -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.parser = self._parser = Parser(self)  # type: ignore[assignment]
        self.silent[self] = transport.abort
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all timers."""
        self.silent.pop(self, None)
        self._rest = b""
        self._end_waiting()
        self.resume_writing()
        self._parser.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, in slices between which other work has its turn."""
        self.silent.pop(self, None)
        self._received += len(data)
        if self._timer is None:
            self._wait()
        if self._rest:
            self._rest += data
            self.flow.pause_reading()
            return
        self._take(data)

    def _take(self, data: bytes) -> None:
        began = self.loop.time()
        for start in range(0, len(data), _SLICE):
            if self.transport.is_closing():
                return
            if self.loop.time() - began > _PARSING:
                self._rest = data[start:]
                self.flow.pause_reading()
                self.loop.call_soon(self._go_on)
                return
            self._parse(data[start : start + _SLICE])

    def _go_on(self) -> None:
        data, self._rest = self._rest, b""
        if self.transport.is_closing():
            return
        if not self.pipeline:
            self.flow.resume_reading()
        self._take(data)

    def _parse(self, data: bytes) -> None:
        self._quiet += len(data)
        super().data_received(data)
        if len(self.pipeline) > _PIPELINED:
            self.transport.abort()
        elif self._quiet > _HEAD + _SLICE and not self.transport.is_closing():
            self._refuse(431, RequestSizeError(f"the headers have more than {_HEAD} bytes"))

    # ---- requests -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a request."""
        super().on_message_begin()
        self.scope["state"][ABORT] = self.transport.abort
        self._quiet = self._ignored = 0
        if self._timer is None:
            self._wait()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, or leave it out if the request is answered already."""
        self._quiet = 0
        if self.cycle.response_complete:
            self._ignored += len(body)
            if self._ignored > _IGNORED:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._quiet = 0
        self._end_waiting()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(400, RequestError("the request is not valid HTTP/1.1"))

    def _wait(self) -> None:
        self._began, self._received = self.loop.time(), 0
        self._timer = self.loop.call_later(self.seconds, self._check)

    def _end_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        left = self._began + self.seconds + self._received / RATE - self.loop.time()
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            left = max(left, self.seconds)  # the answer to an earlier request is not there yet
        if left > 0:
            self._timer = self.loop.call_later(left, self._check)
        elif self._received and not (self.cycle is not None and self.cycle.response_started):
            self._refuse(408, ReceiveError("the request was not received in time"))
        else:
            self.transport.abort()

    def _refuse(self, status: int, error: HeteroccError) -> None:
        body = json.dumps({"error": text_of(error)}).encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    # ---- answers --------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client takes less than is sent."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken what was sent."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()
