"""The package `tvm_ffi`, imported when a name of it is first used, so that importing the runtime takes less time."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from heterocc.artifacts.foreign import handlers_wait
from heterocc.runtime.deferred import defer, run


def __getattr__(name: str) -> Any:
    """A name of tvm_ffi."""
    if name.startswith("__"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if "tvm_ffi" not in sys.modules:
        with handlers_wait():
            _defer_parts()
            importlib.import_module("tvm_ffi")
    value = getattr(importlib.import_module("tvm_ffi"), name)
    globals()[name] = value
    return value


def load_library() -> None:
    """Import tvm_ffi, which loads libtvm_ffi.so; libraries that need it find it by its name then, wherever it lies."""
    __getattr__("get_global_func")


def _defer_parts() -> None:
    """Put parts off that only compiling programs use. They, and the search for the package's own library among the
    files of all installed packages, took more than half of the time to import it."""
    spec = PathFinder.find_spec("tvm_ffi")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    defer("tvm_ffi.cpp", places)
    inside = [str(Path(place, "dataclasses")) for place in places]
    defer("tvm_ffi.dataclasses.py_class", inside, method=_method)
    defer("tvm_ffi.dataclasses", places)
    defer("typing_extensions", sys.path, get_annotations=_get_annotations)
    if importlib.util.find_spec("torch") is None:  # else it makes tensors of torch fit
        defer("tvm_ffi._optional_torch_c_dlpack", places)
    defer("tvm_ffi.libinfo", places, load_lib_ctypes=_load_library)


def _method(*arguments: Any, **named: Any) -> Any:
    """`tvm_ffi.method`."""
    return run("tvm_ffi.dataclasses.py_class").method(*arguments, **named)


def _get_annotations(*arguments: Any, **named: Any) -> Any:
    """`typing_extensions.get_annotations`, of which tvm_ffi needs nothing else."""
    return run("typing_extensions").get_annotations(*arguments, **named)


def _load_library(package: str, target_name: str, mode: str, *others: Any, **named: Any) -> Any:
    """As `tvm_ffi.libinfo.load_lib_ctypes`, which imports `importlib.metadata` to look for the library."""
    info = importlib.import_module("tvm_ffi.libinfo")
    path = Path(info.__file__ or "").with_name("lib") / f"lib{target_name}.so"
    if (package, target_name) == ("apache-tvm-ffi", "tvm_ffi") and not others and not named and path.is_file():
        return ctypes.CDLL(str(path), getattr(ctypes, mode))
    return run("tvm_ffi.libinfo").load_lib_ctypes(package, target_name, mode, *others, **named)
