"""The text that asks for devices: a list, `AUTO`, `MULTI:…` and `HETERO:…`, common to compiling and loading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.frozen import frozen, replaced

Kind = Literal["first", "list", "auto", "multi"]

CANDIDATES = ("GPU", "CPU")
"""The devices among which a compile with `AUTO` or `MULTI` chooses if none are listed."""


@frozen
class DeviceRequest:
    """`list`: the devices `names`. `auto`: the best of `names`, or of all, without `excluded`; after it, `then`.

    `multi`: as `auto`, but each of them. `first`: nothing is asked for. `text` is the request as it was written.
    """

    kind: Kind
    names: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    text: str = ""

    @property
    def is_automatic(self) -> bool:
        """Whether it leaves a choice, as `AUTO`, `AUTO:VULKAN,CPU` and `MULTI` do."""
        return self.kind in ("auto", "multi")

    @property
    def is_multi(self) -> bool:
        """Whether it asks for several variants at the same time: `MULTI`, `MULTI:GPU,CPU`."""
        return self.kind == "multi"

    @property
    def without_names(self) -> DeviceRequest:
        """The best of all devices but those that are excluded."""
        away = ",".join(f"-{name}" for name in self.excluded)
        return DeviceRequest("auto", excluded=self.excluded, text=f"AUTO:{away}" if away else "AUTO")


FIRST = DeviceRequest("first")
AUTO = DeviceRequest("auto", text="AUTO")


def named(name: str) -> DeviceRequest:
    """The request for one device or variant."""
    return DeviceRequest("list", (name,), text=name)


def _joined(devices: str | Sequence[str]) -> str:
    """The request as one text. Raises UsageError unless it is a string or a sequence of strings."""
    if isinstance(devices, str):
        return devices.strip()
    if not isinstance(devices, Sequence) or not all(isinstance(name, str) for name in devices):
        raise UsageError(f'devices must be a string such as "GPU,CPU" or a sequence of names, not {devices!r}'[:200])
    return ",".join(devices).strip()


def parse_request(devices: str | Sequence[str] | None) -> DeviceRequest:
    """Parse `GPU,CPU`, `AUTO`, `AUTO:GPU,-CPU`, `AUTO,CPU`, `MULTI:GPU,CPU` or `HETERO:GPU,CPU`. Case does not matter.

    None is the request `first`. An empty text and `HETERO` alone are `AUTO`; `HETERO:` before a list has no effect, and
    `AUTO:` is `AUTO`. A name after `-` is excluded. Names may be empty: the caller knows the text to complain about.
    """
    if devices is None:
        return FIRST
    text = _joined(devices)
    return replaced(_parsed(text), text=text)


def _parsed(text: str) -> DeviceRequest:
    head, colon, tail = text.partition(":")
    word = head.strip().upper()
    if word == "HETERO":
        return _parsed(tail.strip()) if colon else DeviceRequest("auto")
    if not text:
        return DeviceRequest("auto")
    if word in ("AUTO", "MULTI") and colon:
        listed = [name.strip() for name in tail.split(",")] if tail.strip() else []
        names = tuple(name for name in listed if not name.startswith("-"))
        excluded = tuple(name[1:].strip() for name in listed if name.startswith("-"))
        return DeviceRequest("auto" if word == "AUTO" else "multi", names, excluded)
    names = tuple(name.strip() for name in text.split(","))
    if text.upper() == "MULTI":
        return DeviceRequest("multi")
    if names[0].upper() == "AUTO":
        return DeviceRequest("auto", then=names[1:])
    return DeviceRequest("list", names)
