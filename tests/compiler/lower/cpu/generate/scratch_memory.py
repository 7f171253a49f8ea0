"""Scratch memory of generated code that shows whether the code computes with what nobody wrote (scratch_memory.c)."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import tvm_ffi

from heterocc.runtime.native.tvm_libraries import tvm_libraries

SOURCE = Path(__file__).parent / "scratch_memory.c"
_NAMES = ("TVMBackendAllocWorkspace", "TVMBackendFreeWorkspace")


@contextmanager
def watched_scratch() -> Iterator[None]:
    """A context for the compilation of code in this process: its scratch memory is full of signalling NaNs."""
    if platform.machine() != "x86_64":
        yield
        return
    library = _library()
    try:
        for name, ours in zip(_NAMES, ("scratch_allocate", "scratch_free"), strict=True):
            _register(name, _address(library, ours))
        yield
    finally:
        for name in _NAMES:
            _register(name, _address(_tvm(), name))


def unwritten_blocks() -> int:
    """The number of scratch blocks, since the last call, during whose use a thread computed with a signalling NaN."""
    return int(_library().scratch_invalid()) if platform.machine() == "x86_64" else 0


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scratch_memory.so"
        command = (sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-fno-sanitize=all")
        done = subprocess.run([*command, str(SOURCE), "-o", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(path))
    library.scratch_use(*(ctypes.c_void_p(_address(_tvm(), name)) for name in _NAMES))
    return library


@cache
def _tvm() -> ctypes.CDLL:
    return ctypes.CDLL(str(tvm_libraries().find("libtvm_runtime.so")))


def _address(library: ctypes.CDLL, name: str) -> int | None:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def _register(name: str, address: int | None) -> None:
    core = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    assert core.TVMFFIEnvModRegisterContextSymbol(f"__{name}".encode(), ctypes.c_void_p(address)) == 0
