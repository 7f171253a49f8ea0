"""Modules of other packages that are imported when something in them is first used."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_lock = threading.RLock()


def defer(name: str, places: Sequence[str], **given: Callable[..., Any]) -> None:
    """Delay the code of a module in one of the folders `places` until something in the module is used.

    Until then, functions in `given` are called in place of the module's own. Does nothing if the module is already
    imported or does not exist.
    """
    spec = PathFinder.find_spec(name, places) if name not in sys.modules else None
    if spec is not None and spec.loader is not None:
        sys.modules.setdefault(name, _Deferred(spec, given))


def run(name: str) -> ModuleType:
    """The imported module of that name; if it was delayed, its code has run."""
    module = sys.modules[name]
    if isinstance(module, _Deferred):
        module.start()
    return module


class _Deferred(ModuleType):
    """A module whose code runs when something in it is first used, by any thread."""

    def __init__(self, spec: ModuleSpec, given: dict[str, Callable[..., Any]]) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec
        self.__loader__ = spec.loader
        self.__package__ = spec.parent
        self.__file__ = spec.origin
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)
        self.__dict__.update(given)
        self._started = False

    def start(self) -> None:
        """Run the code, unless it has run."""
        with _lock:
            spec = self.__dict__["__spec__"]
            if not self.__dict__["_started"]:
                self._started = True
                spec.loader.exec_module(self)

    def __getattr__(self, name: str) -> Any:
        """Called for names that are not there yet."""
        with _lock:
            if name == "__all__" or not name.startswith("__"):
                self.start()
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module '{self.__dict__['__spec__'].name}' has no attribute '{name}'")
