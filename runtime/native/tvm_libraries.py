"""The TVM runtime libraries that this installation uses: those of apache-tvm where that is installed, else our copy.

A process that also imports `tvm` must have one copy, because a second one would register the same functions again.
heterocc-runtime brings its copy, taken from the same release, for machines without apache-tvm.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from heterocc.artifacts.errors import NativePluginError
from heterocc.artifacts.frozen import frozen

TVM_SERIES = "0.27."
"""The series of TVM whose C++ interface the plug-ins are compiled against."""

REINSTALL = "install heterocc or heterocc-runtime again, with pip's option --force-reinstall"

_FIRST = "libtvm_runtime.so"
_VERSION = "version.txt"


@frozen
class TvmLibraries:
    """Folders that are searched for the libraries, in order, and their version; `owner` names them in messages."""

    folders: tuple[Path, ...]
    version: str
    owner: str

    def find(self, name: str) -> Path:
        """The path of a library. Raises NativePluginError if it is missing."""
        for folder in self.folders:
            if (folder / name).is_file():
                return folder / name
        raise NativePluginError(f"{name} was not found in {self.owner}", hint=REINSTALL)


def tvm_libraries() -> TvmLibraries:
    """The libraries to load. Raises NativePluginError if there are none of the series that the plug-ins fit."""
    package = package_version()
    if package is not None and package.startswith(TVM_SERIES):
        folders = [Path(os.environ["TVM_LIBRARY_PATH"])] if os.environ.get("TVM_LIBRARY_PATH") else []
        return TvmLibraries((*folders, *(place / "lib" for place in _package_folders())), package, "apache-tvm")
    for folder in _own_folders():
        version = _text(folder / _VERSION)
        if version.startswith(TVM_SERIES) and (folder / _FIRST).is_file():
            return TvmLibraries((folder,), version, "heterocc-runtime")
    if package is None:
        raise NativePluginError("heterocc-runtime was installed without TVM's runtime libraries", hint=REINSTALL)
    raise _other_series(package)


def tvm_version() -> str | None:
    """The version of the libraries that `tvm_libraries` gives; None if there are none."""
    try:
        return tvm_libraries().version
    except NativePluginError:
        return None


def check_imported_tvm() -> None:
    """Raise NativePluginError if the process has imported a TVM of a series that the plug-ins do not fit."""
    if "tvm" in sys.modules and (version := package_version()) is not None and not version.startswith(TVM_SERIES):
        raise _other_series(version)


def check_tvm_version() -> None:
    """Raise NativePluginError unless the TVM of this process is of the series that the plug-ins fit."""
    check_imported_tvm()
    tvm_libraries()


@cache
def package_version() -> str | None:
    """The version of the installed apache-tvm; None without that package."""
    for folder in _package_folders():
        for info in folder.parent.glob("apache_tvm-*.dist-info"):
            return info.name.removeprefix("apache_tvm-").removesuffix(".dist-info")
        from importlib import metadata  # not at the top: takes longer to import than all else here

        try:
            return metadata.version("apache-tvm")
        except metadata.PackageNotFoundError:
            return None
    return None


def _package_folders() -> tuple[Path, ...]:
    spec = importlib.util.find_spec("tvm")
    return tuple(map(Path, spec.submodule_search_locations or ())) if spec is not None else ()


def _own_folders() -> Iterator[Path]:
    """Folders in which an installation puts our copy: beside this file, or that in site-packages if editable."""
    yield Path(__file__).parent / "tvm"
    for place in sys.path:
        yield Path(place, "heterocc", "runtime", "native", "tvm")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _other_series(version: str) -> NativePluginError:
    return NativePluginError(
        f"apache-tvm {version} is installed, but heterocc needs {TVM_SERIES}*",
        hint=f"pip install 'apache-tvm=={TVM_SERIES}*'",
    )
