"""The package `tvm_ffi`, imported when a name of it is first used, so that importing the runtime takes less time."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_METADATA_OF_PACKAGES = "importlib.metadata._adapters"
"""Imports the package `email` and sockets for `importlib.metadata.metadata`, which tvm_ffi does not call: it looks for
its library's path. That took a third of the time to import tvm_ffi."""

_lock = threading.RLock()


def __getattr__(name: str) -> Any:
    """A name of tvm_ffi."""
    if name.startswith("__"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    _defer(_METADATA_OF_PACKAGES)
    value = getattr(importlib.import_module("tvm_ffi"), name)
    globals()[name] = value
    return value


def load_library() -> None:
    """Import tvm_ffi, which loads libtvm_ffi.so; libraries that need it find it by its name then, wherever it lies."""
    __getattr__("get_global_func")


class _Deferred(ModuleType):
    """A module whose code runs when something in it is first used, by any thread."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec
        self.__loader__ = spec.loader
        self.__package__ = spec.parent
        self.__file__ = spec.origin
        self._started = False

    def __getattr__(self, name: str) -> Any:
        """Called for names that are not there yet."""
        with _lock:
            spec = self.__dict__["__spec__"]
            if not self.__dict__["_started"] and not name.startswith("__"):
                self._started = True
                spec.loader.exec_module(self)
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module '{spec.name}' has no attribute '{name}'")


def _defer(name: str) -> None:
    """Put a private module of the standard library off until it is used, unless it or its package is imported."""
    package = name.rpartition(".")[0]
    if package in sys.modules:
        return
    places = [str(Path(place, package.rpartition(".")[2])) for place in importlib.__path__]
    spec = PathFinder.find_spec(name, places)
    if spec is not None and spec.loader is not None:
        sys.modules.setdefault(name, _Deferred(spec))
