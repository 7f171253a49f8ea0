"""Loads TVM's runtime library out of the installed `apache-tvm` package without importing that package."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import threading
from pathlib import Path

import tvm_ffi

from heterocc.artifacts.errors import NativePluginError

TVM_SERIES = "0.27."
"""The series of TVM whose C++ interface the plug-ins are compiled against."""

_LOCK = threading.Lock()
_HINT = "reinstall it: pip install 'apache-tvm==0.27.*'"


def has_global(name: str) -> bool:
    """Whether a global function is registered with TVM."""
    return tvm_ffi.get_global_func(name, allow_missing=True) is not None


def check_tvm_version() -> None:
    """Raise NativePluginError unless the installed TVM is of the series that the plug-ins fit."""
    try:
        version = importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        raise NativePluginError("the package apache-tvm is not installed", hint=_HINT) from None
    if not version.startswith(TVM_SERIES):
        raise NativePluginError(f"apache-tvm {version} is installed, but heterocc needs 0.27.*", hint=_HINT)


def load_tvm_runtime() -> None:
    """Load libtvm_runtime (its symbols global) and libtvm_runtime_extra, unless this process has them.

    Works before and after `import tvm`; safe to call from any thread, and again. Raises NativePluginError if the
    libraries are missing, cannot be loaded, or are of another series.
    """
    with _LOCK:
        loaded = has_global("runtime.TVMTensorCopyFromTo")
        if loaded and has_global("tvm.contrib.sort.argsort"):
            return
        check_tvm_version()
        if not loaded:
            _open("libtvm_runtime.so", ctypes.RTLD_GLOBAL)
        if not has_global("tvm.contrib.sort.argsort"):
            _open("libtvm_runtime_extra.so", ctypes.RTLD_LOCAL)


def _open(name: str, mode: int) -> None:
    path = find_tvm_library(name)
    try:
        ctypes.CDLL(str(path), mode)
    except OSError as error:
        raise NativePluginError(f"{name} of apache-tvm cannot be loaded: {error}", hint=_HINT) from error


def find_tvm_library(name: str) -> Path:
    """The path of a library of the installed apache-tvm. Raises NativePluginError if it is missing."""
    folders = [Path(os.environ["TVM_LIBRARY_PATH"])] if os.environ.get("TVM_LIBRARY_PATH") else []
    spec = importlib.util.find_spec("tvm")
    folders += [Path(place) / "lib" for place in (spec.submodule_search_locations or () if spec else ())]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise NativePluginError(f"{name} was not found in the package apache-tvm", hint=_HINT)
