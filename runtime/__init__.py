"""The thin runtime: loads a bundle and runs it as a chain of compiled models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heterocc.runtime import errors
from heterocc.runtime.binding import Binding
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.session import Session, load

if TYPE_CHECKING:
    from heterocc.runtime.profile.profile import Profile, ProfileRecord
    from heterocc.runtime.profile.trace import KernelTrace

__all__ = ["Binding", "KernelTrace", "Profile", "ProfileRecord", "Session", "TensorInfo", "errors", "load"]


_LATER = {
    "KernelTrace": "heterocc.runtime.profile.trace",
    "Profile": "heterocc.runtime.profile.profile",
    "ProfileRecord": "heterocc.runtime.profile.profile",
    "__version__": "heterocc.artifacts.version",
}


def __getattr__(name: str) -> Any:
    """Names that few programs use, imported on first use because that takes milliseconds."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
