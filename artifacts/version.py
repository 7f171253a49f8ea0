"""heterocc's version, read from the installed package on first use."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

__version__: str
"""The version in the package's metadata, such as `0.2.0`, or `0+unknown` if heterocc is not installed as a package."""


def __getattr__(name: str) -> str:
    """Read the version on first use, because importlib.metadata takes a tenth of the runtime's start-up time."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    metadata = import_module("importlib.metadata")
    found = "0+unknown"
    for name in ("heterocc", "heterocc-runtime"):  # the first contains all of the second
        with suppress(metadata.PackageNotFoundError):
            found = metadata.version(name)
            break
    globals()["__version__"] = found
    return found


def require_one_release() -> None:
    """Raise NativePluginError (HC407) if heterocc and heterocc-runtime are installed, of different releases.

    They have files in common, so one of them overwrote those of the other.
    """
    metadata = import_module("importlib.metadata")
    found = {}
    for name in ("heterocc", "heterocc-runtime"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if len(set(found.values())) > 1:
        from heterocc.artifacts.errors import NativePluginError

        raise NativePluginError(
            " and ".join(f"{name} {version}" for name, version in found.items()) + " are installed, and share files",
            hint="pip uninstall heterocc heterocc-runtime, then install heterocc, which contains the runtime",
        )
