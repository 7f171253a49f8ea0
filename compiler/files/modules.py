"""Modules that are found by their place, so that no list names them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType


def modules_of(package: str, path: Iterable[str]) -> list[ModuleType]:
    """The modules of a package and of those in it, in the order of their names; `path` is its `__path__`."""
    return [importlib.import_module(found.name) for found in pkgutil.walk_packages(path, f"{package}.")]
