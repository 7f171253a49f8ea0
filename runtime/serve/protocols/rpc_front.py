"""gRPC's public port, in front of gRPC's library, which listens on a socket that only this process's user can reach.

The library limits a request's headers to 16 KiB once a client has acknowledged its settings, and to 16 MiB before, in
memory that nothing else counts. So the front acknowledges them itself, before the library gets a client's first header,
and drops the client's own acknowledgement. It changes nothing else, and looks at no frame after that one. TLS ends
here, too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from heterocc.runtime.native import socket_pairs
from heterocc.runtime.serve.errors import ServiceError

FILES = 3
"""Files that a connection takes: the client's, and both ends of the library's."""

_PREFACE = 24
"""Bytes with which a client begins a connection (RFC 9113, 3.4), before its first frame, which has its settings."""

_FRAME = 9
"""Bytes of a frame before its contents."""

_SETTINGS, _IS_ACKNOWLEDGEMENT = 4, 1
_ACKNOWLEDGEMENT = bytes((0, 0, 0, _SETTINGS, _IS_ACKNOWLEDGEMENT, 0, 0, 0, 0))

_FRAMES = 4096
"""Frames that a client sends before it acknowledges the settings, at most: it does as soon as it gets them."""

_BUFFER = 1 << 16
"""Bytes that are received at a time, and wait to be sent in one direction of a connection, at most."""

_LONGEST_PATH = 90
"""Bytes of the path of the folder, at most; Linux allows 107 for the socket's."""

_log = logging.getLogger(__name__)


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the library's socket. Raises ServiceError if none can be made."""
    for parent in (None, "/dev/shm"):
        try:
            folder = tempfile.TemporaryDirectory(prefix="heterocc-", dir=parent)
        except OSError:
            continue
        if len(bytes(Path(folder.name))) <= _LONGEST_PATH:
            return folder
        folder.cleanup()
    raise ServiceError(
        "the service needs a folder for a socket, and has no place where it can be made",
        where=tempfile.gettempdir() if tempfile.tempdir else "TMPDIR",
        hint="set TMPDIR to a folder with a short path that can be written, or use --no-grpc",
    )


class Opening:
    """The part of a client's data in which its acknowledgement of the library's settings may come."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the acknowledgement has come, so that what follows passes unchanged."""
        self._rest = _PREFACE  # of the preface, or of a frame's contents
        self._head = b""
        self._frames = 0

    @property
    def is_hostile(self) -> bool:
        """Whether the acknowledgement should have come by now."""
        return self._frames > _FRAMES and not self.ended

    def passed(self, data: bytes) -> bytes:
        """What the library gets of a part of the data: the front's acknowledgement follows the first frame."""
        parts, begin, place = [], 0, 0
        while place < len(data):
            if self._rest:
                step = min(self._rest, len(data) - place)
                self._rest -= step
                place += step
                continue
            parts.append(data[begin:place])
            missing = _FRAME - len(self._head)
            self._head += data[place : place + missing]
            begin = place = place + missing
            if len(self._head) < _FRAME:
                break
            head, self._head = self._head, b""
            if self._frames == 1:
                parts.append(_ACKNOWLEDGEMENT)
            if self._frames and head[:4] == _ACKNOWLEDGEMENT[:4] and head[4] & _IS_ACKNOWLEDGEMENT:
                self.ended = True
                place = len(data)
            else:
                parts.append(head)
                self._rest = int.from_bytes(head[:3], "big")
            self._frames += 1
        parts.append(data[begin:place])
        return b"".join(parts)


class _End(asyncio.BufferedProtocol):
    """One end of a connection through the front: what it receives is sent to the other one."""

    transport: asyncio.Transport
    other: _End | None = None

    def __init__(self, front: Front) -> None:
        self._front = front
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=1)  # read no more until all is sent

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._front.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.pass_on(bytes(self._front.buffer[:nbytes]))

    def pass_on(self, data: bytes) -> None:
        """Send data to the other end."""
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()
        self.abort_later()

    def resume_writing(self) -> None:
        self.wait_no_longer()
        if self.other is not None and not self.other.closed:
            self.other.transport.resume_reading()
            self.hand_over()

    def hand_over(self) -> None:
        """Let the plug-in pass what follows, if it may."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.wait_no_longer()
        if self.other is not None and not self.other.closed:
            self.other.transport.close()
            self.other.abort_later()  # what is left for a client is sent, if the client takes it

    def abort_later(self) -> None:
        """End the connection after some time."""
        if self._timer is None and not self.closed:
            self._timer = asyncio.get_running_loop().call_later(self._front.seconds, self.transport.abort)

    def wait_no_longer(self) -> None:
        """The connection need not be ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Library(_End):
    """The library's end."""

    def __init__(self, front: Front, client: _Client) -> None:
        super().__init__(front)
        self.other: _Client = client
        self._begun = False

    def hand_over(self) -> None:
        """Let the plug-in pass what follows, if it may."""
        self.other.hand_over()

    def pass_on(self, data: bytes) -> None:
        """Send data to the client. The first has the library's settings."""
        super().pass_on(data)
        if not self._begun:
            self._begun = True
            self.other.begin(self)


class _Client(_End):
    """A client's end."""

    def __init__(self, front: Front) -> None:
        super().__init__(front)
        self._opening: Opening | None = Opening()
        self._connecting: asyncio.Task[None] | None = None
        self._handed_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect with the library."""
        super().connection_made(transport)
        self._front.clients.add(self)
        self._front.silent[self] = self.transport.abort
        self.transport.pause_reading()
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: _Library(self._front, self), self._front.path)
        except OSError as error:
            _refused(self, error)

    def begin(self, library: _Library) -> None:
        """The library's settings are there: take what the client sends."""
        self.other = library
        if self.closed:
            library.transport.abort()
            return
        self.abort_later()
        self.transport.resume_reading()

    def wait_no_longer(self) -> None:
        """The connection need not be ended, unless the acknowledgement is still to come."""
        if self._opening is None or self.closed:
            super().wait_no_longer()

    def pass_on(self, data: bytes) -> None:
        """Send data to the library."""
        self._front.silent.pop(self, None)
        if self._opening is not None:
            data = self._opening.passed(data)
            if self._opening.is_hostile:
                self.transport.abort()
                return
            if self._opening.ended:
                self._opening = None
                self.wait_no_longer()
        super().pass_on(data)
        self.hand_over()

    def hand_over(self) -> None:
        """Let the plug-in pass what follows, if the opening is over, all before is sent, and it is not encrypted."""
        library = self.other
        if self._opening is not None or library is None or self._handed_over:
            return
        ends = (self.transport, library.transport)
        if any(end.is_closing() or end.get_write_buffer_size() for end in ends):
            return
        if self.transport.get_extra_info("ssl_object") is None:
            self._handed_over = True
            for end in ends:
                end.pause_reading()
            self._front.pass_between(self, *(end.get_extra_info("socket").fileno() for end in ends))

    def abort(self) -> None:
        """End the connection. What the plug-in passes it reports when it has ended that."""
        if self._handed_over:
            with suppress(OSError):
                self.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._front.silent.pop(self, None)
        self._front.clients.discard(self)


class Front:
    """The front of a library that listens on the socket `path`; clients have `seconds` to take what is sent to them.

    `silent` are clients that have sent nothing, each with what ends its connection.
    """

    def __init__(self, path: str, seconds: float, silent: dict[object, Callable[[], None]] | None = None) -> None:
        self.path = path
        self.seconds = seconds
        self.silent = {} if silent is None else silent
        self.clients: set[_Client] = set()
        self.buffer = memoryview(bytearray(_BUFFER))
        """What one of the ends receives, until it is passed on."""
        self._handed_over: dict[int, _Client] = {}
        self._numbers = itertools.count()
        self._ended, self._end = os.pipe()
        asyncio.get_running_loop().add_reader(self._ended, self._take_ended)

    def client(self) -> asyncio.BaseProtocol:
        """A new client's protocol."""
        return _Client(self)

    def pass_between(self, client: _Client, first: int, second: int) -> None:
        """Let the plug-in pass what a client and the library send."""
        number = next(self._numbers)
        try:
            socket_pairs.pass_between(first, second, self.seconds, self._end, number)
        except OSError as error:
            _refused(client, error)
        else:
            self._handed_over[number] = client

    def _take_ended(self) -> None:
        for (number,) in struct.iter_unpack("=q", os.read(self._ended, 1 << 12)):
            self._handed_over.pop(number).transport.abort()

    async def close(self) -> None:
        """End all connections."""
        while self.clients:
            for client in list(self.clients):
                client.abort()
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().remove_reader(self._ended)
        os.close(self._ended)
        os.close(self._end)


def _refused(client: _Client, error: OSError) -> None:
    _log.warning("a connection is refused", extra={"reason": error.strerror or str(error)})
    client.transport.abort()
