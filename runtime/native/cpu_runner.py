"""Runs of CPU code from a dictionary of arrays to a dictionary of arrays, without Python code between the two."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from heterocc.runtime.native import cpu_api

Array = np.ndarray[Any, Any]

Run = Callable[[Any], dict[str, Array] | None]


class RunValue(NamedTuple):
    """An input or output of a run, under its name for callers.

    `array` is the context's own memory for it, whose dtype and shape callers' arrays have; `pointer` is the address of
    its tensor's data pointer; `alignment` is what code requires of the address, in bytes.
    """

    name: str
    array: Array
    pointer: int
    alignment: int


def new_runner(inputs: Sequence[RunValue], outputs: Sequence[RunValue], calls: Sequence[Any]) -> Run | None:
    """A function from a feed to new results, or None if this interpreter or this installation has none.

    It runs `calls`, functions of tvm_ffi without arguments, in order. Given anything but a dictionary of plain arrays
    for exactly these inputs, or if a call fails, it returns None: the caller then runs in Python, which converts inputs
    and says what is wrong. The caller keeps the arrays, the calls and the tensors, and runs it on one thread at a time.
    """
    return _new(inputs, outputs, calls) if is_usable() else None


def _new(inputs: Sequence[RunValue], outputs: Sequence[RunValue], calls: Sequence[Any]) -> Run:
    plugin, arrays = library()
    handles = (ctypes.c_void_p * len(calls))(*(call.__chandle__() for call in calls))
    found: Run = plugin.heterocc_cpu_runner(
        arrays, _values(inputs), len(inputs), _values(outputs), len(outputs), handles, len(calls)
    )
    return found


def _values(values: Sequence[RunValue]) -> ctypes.Array[_Value]:
    return (_Value * len(values))(*map(_Value.of, values))


class _Value(ctypes.Structure):
    """A value; see fast_path.h."""

    _fields_ = (
        ("name", ctypes.py_object),
        ("dtype", ctypes.py_object),
        ("rank", ctypes.c_int64),
        ("extents", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_int64),
        ("pointer", ctypes.c_void_p),
        ("home", ctypes.c_void_p),
        ("alignment", ctypes.c_int64),
    )

    @classmethod
    def of(cls, value: RunValue) -> _Value:
        """The value as the plug-in takes it."""
        array = value.array
        extents = (ctypes.c_int64 * array.ndim)(*array.shape)
        return cls(
            value.name,
            array.dtype,
            array.ndim,
            extents,
            array.nbytes,
            value.pointer,
            array.ctypes.data,
            value.alignment,
        )


@cache
def library() -> tuple[ctypes.PyDLL, int]:
    """The plug-in, called with the interpreter's lock, and the table of numpy's C API. Raises NativePluginError."""
    found = ctypes.PyDLL(str(cpu_api.PLUGIN.find_library()))
    found.heterocc_cpu_runner.restype = ctypes.py_object
    found.heterocc_cpu_runner.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(_Value),
        ctypes.c_int64,
        ctypes.POINTER(_Value),
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int64,
    ]
    core = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    capsule = importlib.import_module(f"{core}._multiarray_umath")._ARRAY_API
    address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return found, address(capsule, None)


@cache
def is_usable() -> bool:
    """Whether objects of this interpreter and arrays of this numpy are as the plug-in expects them."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    plain = sys.implementation.name == "cpython" and object.__basicsize__ == 16 and not hasattr(sys, "gettotalrefcount")
    if not locked or not plain or cpu_api.problem() is not None:
        return False
    own = np.zeros((2, 3), np.float32)
    pointers = (ctypes.c_void_p * 2)(own.ctypes.data, own.ctypes.data)
    first = ctypes.addressof(pointers)
    values = [RunValue(name, own, first + 8 * place, 4) for place, name in enumerate(("x", "y"))]
    run = _new(values[:1], values[1:], [])
    if run is None or run({"x": own.T}) is not None or run({"x": own.view(np.int32)}) is not None:
        return False
    given = own.copy()
    results = run({"x": given})
    found = None if results is None else results.get("y")
    return (
        type(found) is np.ndarray
        and found.dtype is own.dtype
        and (found.shape, found.strides) == (own.shape, own.strides)
        and found.flags.writeable
        and found.flags.aligned
        and found.ctypes.data % 64 == 0
    )
