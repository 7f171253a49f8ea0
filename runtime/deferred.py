"""Modules of other packages that are imported when something in them is first used."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from heterocc.artifacts.foreign import handlers_wait

_lock = threading.Lock()


def defer(name: str, places: Sequence[str], **given: Callable[..., Any]) -> None:
    """Delay the import of a module in one of the folders `places`, and of the modules in it if it is a package, until
    something in the module is used.

    Until then, functions in `given` are called in place of the module's own. Does nothing if the module is already
    imported or does not exist.
    """
    spec = PathFinder.find_spec(name, places) if name not in sys.modules else None
    if spec is None or spec.loader is None:
        return
    sys.modules.setdefault(name, _Deferred(spec, given))
    folders = list(spec.submodule_search_locations or ())
    for file in (file for folder in folders for file in Path(folder).glob("*.py")):
        if file.stem != "__init__":
            defer(f"{name}.{file.stem}", folders)


def run(name: str) -> ModuleType:
    """The imported module of that name; if it was delayed, it is imported now."""
    module = importlib.import_module(name)
    return module.import_now() if isinstance(module, _Deferred) else module


class _Deferred(ModuleType):
    """Stands for a module until something in it is first used, by any thread.

    Python's own import runs the code then, in a module of its own: it lets other threads wait until all of the module
    is there, and ends when two threads wait for each other.
    """

    def __init__(self, spec: ModuleSpec, given: dict[str, Callable[..., Any]]) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec
        self.__loader__ = spec.loader
        self.__package__ = spec.parent
        self.__file__ = spec.origin
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)
        self.__dict__.update(given, _name=spec.name)

    @handlers_wait()
    def import_now(self) -> ModuleType:
        """The module itself, imported unless it has been; the package that it is in comes first, as always.

        Its submodules become its attributes, also those that were imported while this stood for it: the import that
        runs the code of a package finds these loaded, and leaves them out.
        """
        name = self.__dict__["_name"]
        if parent := name.rpartition(".")[0]:
            run(parent)
        with _lock:
            if sys.modules.get(name) is self:
                del sys.modules[name]
        module = importlib.import_module(name)
        for imported, submodule in list(sys.modules.items()):
            package, _, child = imported.rpartition(".")
            if package == name:
                vars(module).setdefault(child, submodule)
        return module

    def __getattr__(self, name: str) -> Any:
        """Called for names that are not among those given."""
        if name == "__all__" or not name.startswith("__"):
            return getattr(self.import_now(), name)
        raise AttributeError(f"module '{self.__dict__['_name']}' has no attribute '{name}'")
