"""The thin runtime: loads a bundle and runs it as a chain of compiled models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heterocc.artifacts.foreign import handlers_wait
from heterocc.runtime import errors
from heterocc.runtime.binding import Binding, StatefulBinding
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.session import Session, load

if TYPE_CHECKING:
    from heterocc.runtime.machine.devices import Inventory
    from heterocc.runtime.machine.devices import inventory as devices
    from heterocc.runtime.machine.found import FoundDevice
    from heterocc.runtime.profile.profile import Profile, ProfileRecord
    from heterocc.runtime.profile.trace import KernelTrace
    from heterocc.runtime.requests.stream import Stream

__all__ = [
    "Binding",
    "FoundDevice",
    "Inventory",
    "KernelTrace",
    "Profile",
    "ProfileRecord",
    "Session",
    "StatefulBinding",
    "Stream",
    "TensorInfo",
    "devices",
    "errors",
    "load",
]


_LATER = {
    "FoundDevice": "heterocc.runtime.machine.found",
    "Inventory": "heterocc.runtime.machine.devices",
    "KernelTrace": "heterocc.runtime.profile.trace",
    "Profile": "heterocc.runtime.profile.profile",
    "ProfileRecord": "heterocc.runtime.profile.profile",
    "Stream": "heterocc.runtime.requests.stream",
    "__version__": "heterocc.artifacts.version",
    "devices": "heterocc.runtime.machine.devices",
}

_OWN_NAMES = {"devices": "inventory"}
"""Their names in the modules that define them, if these differ."""


def __getattr__(name: str) -> Any:
    """Names that few programs use, imported on first use because that takes milliseconds."""
    if name in _LATER:
        with handlers_wait():
            home = import_module(_LATER[name])
        return getattr(home, _OWN_NAMES.get(name, name))
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted([*__all__, "__version__"])
