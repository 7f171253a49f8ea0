"""HTTP requests that offer to change the protocol, as clients do that prefer HTTP/2.

The service goes on with HTTP/1.1, as it may. The parser, httptools, ends such a request after its headers and takes the
body for data of the other protocol: it is read as the body of a second request, of which nobody sees the headers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")


def _parser(target: Any) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(target)
    # As uvicorn has it: data after the last request of a connection is not an error.
    with suppress(AttributeError):  # before httptools 0.6.3
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class Parser:
    """A parser of requests with httptools' interface; `target` has its callbacks."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._parser = _parser(self)
        self._framing: list[bytes] = []
        self._in_body = False
        """Whether the request's headers are those of `_body_follows`."""

    def get_http_version(self) -> str:
        """The version of the request."""
        return str(self._parser.get_http_version())

    def get_method(self) -> bytes:
        """The method of the request."""
        return bytes(self._parser.get_method())

    def should_keep_alive(self) -> bool:
        """Whether the connection stays open after the request."""
        return bool(self._parser.should_keep_alive())

    def should_upgrade(self) -> bool:
        """Whether the protocol is to be changed: never."""
        return False

    def feed_data(self, data: bytes) -> None:
        """Parse data. Raises httptools.HttpParserError."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._framing:
                    self._body_follows()
            else:
                return

    def _body_follows(self) -> None:
        self._parser = _parser(self)
        self._in_body = True
        self._parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *self._framing, b"", b""]))

    def close(self) -> None:
        """End it: the parser and this object would keep each other, and the connection."""
        del self._target, self._parser

    # ---- callbacks ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        if not self._in_body:
            self._framing = []
            self._target.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of its target."""
        if not self._in_body:
            self._target.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if not self._in_body:
            if name.lower() in _FRAMING:
                self._framing.append(name + b": " + value)
            self._target.on_header(name, value)

    def on_headers_complete(self) -> None:
        """The end of the headers."""
        if not self._in_body:
            self._target.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._target.on_body(body)

    def on_message_complete(self) -> None:
        """The end of the request, unless its body follows."""
        if self._in_body or not (self._framing and self._parser.should_upgrade()):
            self._in_body = False
            self._target.on_message_complete()
