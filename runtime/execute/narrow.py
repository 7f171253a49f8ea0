"""Tensors of dtypes that numpy lacks, as the package ml_dtypes has them: for ONNX Runtime and for compiled code."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import CARRIED, NARROW, NUMPY, is_narrow
from heterocc.artifacts.errors import DriverMissingError
from heterocc.artifacts.packed import PackedArray
from heterocc.runtime.execute.ort_session import onnxruntime_package

Array = np.ndarray[Any, Any]

_FOUR_BITS = ("uint4", "int4")
_TEXTS = {f"tensor({name.replace('_', '')})": name for name in NARROW}


def narrow_dtype(name: str) -> np.dtype[Any]:
    """The dtype of ml_dtypes. Raises DriverMissingError if that is not installed."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise DriverMissingError(
            f"the model has values of {name}, which numpy lacks, and ml_dtypes is not installed",
            hint="pip install ml_dtypes",
        ) from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def carried_as_is(name: str) -> tuple[np.dtype[Any], np.dtype[Any]] | None:
    """The dtypes that arrays and compiled code have for a value whose bytes are the same in both; None for others.

    Others are texts, numbers of four bits, whose upper bits may be any, and those of ml_dtypes if it is not installed.
    """
    if name not in CARRIED:
        own = NUMPY.get(name)
        return None if own is None else (own, own)
    try:
        return None if name in _FOUR_BITS else (narrow_dtype(name), CARRIED[name])
    except DriverMissingError:
        return None


def dtype_of(text: str) -> str | None:
    """The name of one of these dtypes in ONNX Runtime's text for a type, `tensor(float8e5m2)`; None for others."""
    return _TEXTS.get(text)


def ort_value(array: Array) -> Any:
    """An OrtValue on the memory of an array of any numeric dtype, its own or ml_dtypes'; it keeps that memory alive."""
    if is_narrow(array):
        return to_ort(array, array.dtype.name)
    return onnxruntime_package().OrtValue.ortvalue_from_numpy(array)


def to_ort(array: Array, dtype: str) -> Any:
    """An OrtValue of the array's elements, which must be of `dtype` as ml_dtypes has it, or as the bundle stores it."""
    if isinstance(array, PackedArray):
        data = array.stretched()
    else:
        data = np.asarray(array, order="C")
        data = _packed(data) if dtype in _FOUR_BITS else data
    return onnxruntime_package().OrtValue.ortvalue_from_numpy_with_onnx_type(data, NARROW[dtype])


def from_ort(value: Any) -> Any:
    """The array that an OrtValue holds; of a dtype that numpy lacks, a copy with the dtype of ml_dtypes.

    A value that is not a tensor stays as it is.
    """
    if not value.is_tensor():
        return value
    name = dtype_of(value.data_type())
    if name is None:
        return value.numpy()
    shape, size = tuple(value.shape()), value.tensor_size_in_bytes()
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8) if size else np.empty(0, np.uint8)
    if name not in _FOUR_BITS:
        return data.view(narrow_dtype(name)).reshape(shape).copy()
    both = np.stack([data & 0xF, data >> 4], axis=-1).ravel()[: math.prod(shape)].astype(np.int8)
    signed = np.where(both > 7, both - 16, both) if name == "int4" else both
    return signed.astype(narrow_dtype(name)).reshape(shape)


def carried(array: Array, dtype: str) -> Array:
    """An array of a dtype of ml_dtypes as compiled code has it, a view if possible; one in that form as it is."""
    code = CARRIED[dtype]
    if array.dtype == code:
        return array
    bits = array.view(code)
    if dtype not in _FOUR_BITS or isinstance(bits, PackedArray):
        return bits
    least, most = (-8, 7) if dtype == "int4" else (0, 15)
    # ml_dtypes ignores the upper four bits of an element.
    is_plain = not bits.size or (int(bits.min()) >= least and int(bits.max()) <= most)
    return bits if is_plain else array.astype(code)


def from_carried(array: Array, dtype: str) -> Array:
    """The reverse of `carried`."""
    return array.astype(narrow_dtype(dtype)) if dtype in _FOUR_BITS else array.view(narrow_dtype(dtype))


def _packed(array: Array) -> Array:
    """Two elements in each byte, the first in the low bits; the shape stays, and the memory is longer than needed."""
    bits = array.astype(np.int8).ravel().view(np.uint8) & 0xF
    packed = np.zeros(array.size, np.uint8)
    low, high = bits[0::2], bits[1::2]
    packed[: low.size] = low
    packed[: high.size] |= high << 4
    return packed.reshape(array.shape)
