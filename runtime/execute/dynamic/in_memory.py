"""Calls of compiled code whose values have shapes that are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.manifest import Partition
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.execute.executable import Executable, Instrument
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.execute.memory import aligned_bytes, host_tensor
from heterocc.runtime.execute.narrow import carried, from_carried
from heterocc.runtime.feeds import Array
from heterocc.runtime.native import cpu_api
from heterocc.runtime.plan.schedule import HOST, Space


def call_on_objects(
    executable: Executable,
    part: Partition,
    tensors: Mapping[tuple[int, Space], Any],
    arrays: Mapping[int, Array],
    objects: dict[int, Any],
    narrow: Mapping[int, str],
    containers: frozenset[int] = frozenset(),
    instrument: Instrument | None = None,
) -> Callable[[], None]:
    """A call of `main(*inputs, params)`, which returns a new tensor for each output, on a new VM instance.

    Static values are in `tensors` and `arrays`. Dynamic ones are numpy arrays in `objects`; results become views of the
    tensors that the code returns. `narrow` has the dtypes of values that numpy lacks, of which code has the bits.
    Inputs that the code lengthens may be in memory with room for more rows, as may its results then.
    Values in `containers` are sequences and optional values: lists of arrays, arrays, and None. Their results are
    copies, because code returns the tensors of its inputs and constants in them.
    """
    try:
        function, lengthened = executable.function(instrument)
    except HeteroccError:
        raise
    except Exception as error:
        raise device_fault(error, f"preparing partition '{part.name}'", str(HOST)) from error
    held = [tensors.get((value, HOST)) for value in part.inputs]
    roomy = frozenset(part.inputs[place] for place in lengthened)

    def run() -> None:
        given = [
            tensor
            if tensor is not None
            else _contained(objects[value], part.alignment)
            if value in containers
            else _tensor_of_rows(_given(objects[value], narrow.get(value)), part.alignment)
            if value in roomy
            else aligned_tensor(_given(objects[value], narrow.get(value)), part.alignment)
            for value, tensor in zip(part.inputs, held, strict=True)
        ]
        for value, result in zip(part.outputs, function(*given, executable.params), strict=True):
            static = arrays.get(value)
            if value in containers:
                objects[value] = _copied(result)
            elif static is None:
                objects[value] = _returned(np.from_dlpack(result), narrow.get(value))
            else:
                np.copyto(static, np.from_dlpack(result), casting="no")

    return run


def _tensor_of_rows(array: Array, alignment: int) -> Any:
    """A tensor over an array that code lengthens, in memory with room for more rows or in any other."""
    flags = array.flags
    if not flags.c_contiguous and flags.aligned and flags.writeable and array.dtype.isnative:
        tensor = host_tensor(array)
        if cpu_api.holds_rows(tensor):
            return tensor
    return aligned_tensor(array, alignment)


def _contained(value: Any, alignment: int) -> Any:
    """A sequence or an optional value as compiled code reads it."""
    if isinstance(value, list):
        return tvm_ffi.Array([aligned_tensor(array, alignment) for array in value])
    return None if value is None else aligned_tensor(value, alignment)


def _copied(value: Any) -> Any:
    """A sequence or an optional value that compiled code returned, in memory of its own."""
    if isinstance(value, tvm_ffi.Array):
        return [np.array(np.from_dlpack(tensor)) for tensor in value]
    return None if value is None else np.array(np.from_dlpack(value))


def _given(array: Array, narrow: str | None) -> Array:
    """An array as compiled code reads it."""
    return array if narrow is None else carried(array, narrow)


def _returned(array: Array, narrow: str | None) -> Array:
    """An array that compiled code wrote, with the dtype of the value."""
    return array if narrow is None else from_carried(array, narrow)


def aligned_tensor(array: Array, alignment: int) -> Any:
    """A TVM tensor over an array's memory, or over a copy if code cannot read the array in place."""
    flags = array.flags
    in_place = flags.c_contiguous and flags.aligned and flags.writeable and array.dtype.isnative
    # Numpy takes a microsecond for an address.
    if not in_place or (alignment > array.itemsize and array.nbytes and array.ctypes.data % alignment):
        copy = aligned_bytes(array.nbytes).view(array.dtype.newbyteorder("=")).reshape(array.shape)
        np.copyto(copy, array)
        array = copy
    return host_tensor(array)
