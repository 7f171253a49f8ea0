"""heterocc's version, read from the installed package when it is asked for."""

from __future__ import annotations

from importlib import import_module

__version__: str
"""The version as the package's metadata has it: `0.2.0`; `0+unknown` where heterocc is not installed as a package."""


def __getattr__(name: str) -> str:
    """Read the version at its first use: importlib.metadata would take a tenth of the runtime's start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    metadata = import_module("importlib.metadata")
    try:
        found: str = metadata.version("heterocc")
    except metadata.PackageNotFoundError:
        found = "0+unknown"
    globals()["__version__"] = found
    return found
