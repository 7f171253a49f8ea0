"""Loads TVM's runtime libraries without importing the package `tvm`."""

from __future__ import annotations

import ctypes
import threading

from heterocc.artifacts.errors import NativePluginError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.native.tvm_libraries import REINSTALL, check_imported_tvm, tvm_libraries

_LOCK = threading.Lock()


def has_global(name: str) -> bool:
    """Whether a global function is registered with TVM."""
    return tvm_ffi.get_global_func(name, allow_missing=True) is not None


def load_tvm_runtime() -> None:
    """Load libtvm_runtime (its symbols global) and libtvm_runtime_extra, unless this process has them.

    Works before and after `import tvm`; safe to call from any thread, and again. Raises NativePluginError if the
    libraries are missing, cannot be loaded, or are of another series.
    """
    with _LOCK:
        check_imported_tvm()
        loaded = has_global("runtime.TVMTensorCopyFromTo")
        if loaded and has_global("tvm.contrib.sort.argsort"):
            return
        if not loaded:
            _open("libtvm_runtime.so", ctypes.RTLD_GLOBAL)
        if not has_global("tvm.contrib.sort.argsort"):
            _open("libtvm_runtime_extra.so", ctypes.RTLD_LOCAL)


def _open(name: str, mode: int) -> None:
    libraries = tvm_libraries()
    path = libraries.find(name)
    try:
        ctypes.CDLL(str(path), mode)
    except OSError as error:
        pass_foreign(error)
        raise NativePluginError(f"{name} of {libraries.owner} cannot be loaded: {error}", hint=REINSTALL) from error
