"""The import of TVM, without what takes half of it.

TVM looks up objects and operators that are not there: types of a library that it loads later, and names for printing
what only its CUDA back end has. Each of them ends in an exception of its C++ code, and the first one in a process reads
the symbols of all libraries for a stack trace that nobody sees: a quarter of a second. For each of some fifty
namespaces it lists all functions, one by one. Its search for schedules, which nothing here uses, and its schedules for
GPUs take a quarter of what is left. Its classes are abstract base classes, so that a test of a type takes four times
as long as usual; a compile makes a million.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from heterocc.runtime.deferred import defer

_AUTOLOAD = "TVM_DEVICE_BACKEND_AUTOLOAD"
"""TVM's variable; with `0` it imports no back ends of its own, and no packages that call themselves back ends."""

_EXTRA = "libtvm_runtime_extra.so"
"""TVM's library that has the types which TVM looks up before it loads it."""

_SELDOM_USED = ("meta_schedule", "dlight")
"""Parts of `tvm.s_tir` that are imported when something in them is used."""


def import_tvm(backend: str) -> None:
    """Import TVM, unless it has been imported, and then what it has for a back end of a GPU."""
    if "tvm" not in sys.modules:
        with _no_back_ends():
            _load_extra()
            _defer_parts()
            with _functions_listed_once():
                import_module("tvm")
    _test_types_quickly()
    from heterocc.compiler.lower.tvm_fixes.exceptions import keep_types

    keep_types()
    if backend in ("cuda", "opencl", "vulkan"):
        from tvm.backend.loader import load

        load(backend)


@contextlib.contextmanager
def _no_back_ends() -> Iterator[None]:
    if _AUTOLOAD in os.environ:
        yield
        return
    os.environ[_AUTOLOAD] = "0"
    try:
        yield
    finally:
        del os.environ[_AUTOLOAD]


def _test_types_quickly() -> None:
    """Let `isinstance` ask for the classes that an object's class inherits: nothing is registered as a TVM class."""
    from tvm_ffi import Object

    kind: Any = type(Object)
    kind.__instancecheck__ = type.__instancecheck__


@contextlib.contextmanager
def _functions_listed_once() -> Iterator[None]:
    """Let TVM list its functions again only when their number has changed."""
    from tvm_ffi import registry

    listed, names = registry.list_global_func_names, list[str]()

    def remembered() -> list[str]:
        count = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()(-1)
        if count != len(names):
            names[:] = listed()
        return names

    registry.list_global_func_names = remembered
    try:
        yield
    finally:
        registry.list_global_func_names = listed


def _folder() -> Path | None:
    """The folder of TVM's package; None if it is not installed."""
    found = importlib.util.find_spec("tvm")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _load_extra() -> None:
    """Load the library with the types, where the wheel has it; else TVM reports them missing as before."""
    folder = _folder()
    if folder is None:
        return
    import_module("tvm_ffi")  # loads the library that this one needs
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(folder / "lib" / _EXTRA))


def _defer_parts() -> None:
    places = [] if (folder := _folder()) is None else [str(folder / "s_tir")]
    for part in _SELDOM_USED:
        defer(f"tvm.s_tir.{part}", places)
