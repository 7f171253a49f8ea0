"""The thin runtime: loads a bundle and runs it as a chain of compiled models."""

from heterocc.runtime import errors
from heterocc.runtime.binding import Binding
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.profile.profile import Profile, ProfileRecord
from heterocc.runtime.profile.trace import KernelTrace
from heterocc.runtime.requests.stream import Stream
from heterocc.runtime.select.devices import Inventory
from heterocc.runtime.select.devices import inventory as devices
from heterocc.runtime.select.found import FoundDevice
from heterocc.runtime.session import Session, load

__all__ = [
    "Binding",
    "FoundDevice",
    "Inventory",
    "KernelTrace",
    "Profile",
    "ProfileRecord",
    "Session",
    "Stream",
    "TensorInfo",
    "devices",
    "errors",
    "load",
]


def __getattr__(name: str) -> str:
    """Return `__version__`, which is read on first use because package metadata takes milliseconds to read."""
    if name == "__version__":
        from heterocc.artifacts.version import __version__

        return __version__
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
