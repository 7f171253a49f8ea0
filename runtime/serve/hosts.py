"""The names by which clients may call the service, and web pages that may not.

A page of another site can make a browser send requests to a service that only this machine or network reaches:
directly, or by a name of its own that it lets point to the service's address (DNS rebinding). Then the header Host has
that name.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from heterocc.runtime.serve.names import shown

ANY = "*"

_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")
"""An address of IPv6 in brackets or a name, with or without a port."""

_LOCAL = ("localhost", "127.0.0.1", "::1")


class Hosts:
    """The names that requests may have in their header Host.

    By default those of this machine if it alone reaches the service (`localhost`, 127.0.0.1, ::1). A service that
    others reach takes any name, for it cannot know its names; from a web page only addresses, its host's names and
    names without a dot, none of which a page of another site can have.
    """

    def __init__(self, host: str, allowed: Sequence[str] | None = None) -> None:
        """`host` is the address that the service listens on; `allowed` are the names, `*` for any."""
        self._given = allowed is not None
        self._any = allowed is not None and ANY in allowed
        self._loopback = _is_loopback(host)
        names = allowed if allowed is not None else (*_LOCAL, host, socket.gethostname())
        self._names = {_plain(name) for name in names}

    def refusal(self, host: str, origin: str, site: str, changes: bool) -> str | None:
        """The reason why a request is refused; None if it is not.

        `host`, `origin` and `site` are its headers Host, Origin and Sec-Fetch-Site, empty if it has none; `changes`
        says that it is not a mere question.
        """
        if self._any:
            return None
        strict = self._given or self._loopback
        if host and not self._knows(host) and (strict or (origin and not _is_safe(host))):
            return f"the service is not called '{shown(host)}' (--allowed-host {shown(_plain(host))} adds the name)"
        if changes and origin and origin.partition("://")[2].lower() != host.lower():
            return f"requests of web pages from {shown(origin)} are refused"
        if changes and site in ("cross-site", "same-site"):
            return "requests of web pages of other sites are refused"
        return None

    def _knows(self, host: str) -> bool:
        return _plain(host) in self._names


def _plain(host: str) -> str:
    """A name or address without port and brackets."""
    name = host.strip().lower()
    found = _HOST.fullmatch(name)
    return (found[1] or found[2]).removesuffix(".") if found else name


def _is_safe(host: str) -> bool:
    """Whether a name cannot belong to another site: an address, or a name without a dot."""
    name = _plain(host)
    return "." not in name or _address(name) is not None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
