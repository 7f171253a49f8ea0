"""What lists of devices such as `GPU,CPU` ask for, before it is known which devices this machine has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heterocc.artifacts.errors import Hint, UnknownDeviceError
from heterocc.runtime.select.request import CANDIDATES, DeviceRequest, parse_request

DEFAULT_DEVICES = "CPU,ORT"


def parse_list(names: str | Sequence[str]) -> DeviceRequest:
    """Parse a list. Raises UnknownDeviceError for one that is empty or has an empty name; `""` is `AUTO`."""
    request = parse_request(names)
    text = request.text
    where = Hint(f"devices={text!r}", f"--devices {text}")
    if not text.strip(" ,") and (text or not (isinstance(names, str) or names)):
        raise UnknownDeviceError(
            "the list of devices is empty",
            where=where,
            hint=Hint(f"for example devices={DEFAULT_DEVICES!r}", f"for example --devices {DEFAULT_DEVICES}"),
        )
    if "" in (*request.names, *request.excluded, *request.then):
        hint = "one comma stands between two names: GPU,CPU or AUTO:GPU,CPU"
        raise UnknownDeviceError("the list of devices has an empty name", where=where, hint=hint)
    return request


def names_in(request: DeviceRequest) -> set[str]:
    """The names of the devices that a list may stand for."""
    names = request.names or (() if request.kind == "list" else CANDIDATES)
    return {name.upper() for name in (*names, *request.then)} - {name.upper() for name in request.excluded}


def each_has(lists: Iterable[DeviceRequest], *wanted: str) -> bool:
    """Whether each list has one of these devices."""
    return all(names_in(listed) & set(wanted) for listed in lists)


def takes_dynamic(lists: Iterable[DeviceRequest]) -> bool:
    """Whether each list has a device that takes dynamic dimensions: the CPU or ONNX Runtime."""
    return each_has(lists, "CPU", "ORT")


def only_numbers(lists: Iterable[DeviceRequest]) -> bool:
    """Whether no list has ONNX Runtime, the only device with strings and maps."""
    return not any("ORT" in names_in(listed) for listed in lists)
