"""heterocc's version, read from the installed package on first use."""

from __future__ import annotations

from importlib import import_module

__version__: str
"""The version in the package's metadata, such as `0.2.0`, or `0+unknown` if heterocc is not installed as a package."""


def __getattr__(name: str) -> str:
    """Read the version on first use, because importlib.metadata takes a tenth of the runtime's start-up time."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    metadata = import_module("importlib.metadata")
    try:
        found: str = metadata.version("heterocc-runtime")
    except metadata.PackageNotFoundError:
        found = "0+unknown"
    globals()["__version__"] = found
    return found
