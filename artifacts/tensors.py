"""What a tensor in the weight file may be: dtypes, sizes in bytes, alignment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

ALIGNMENT = 64

STORAGE: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        "float64": np.dtype("<f8"),
        "float32": np.dtype("<f4"),
        "float16": np.dtype("<f2"),
        "bfloat16": np.dtype("<u2"),
        "float8_e4m3fn": np.dtype("u1"),
        "float8_e4m3fnuz": np.dtype("u1"),
        "float8_e5m2": np.dtype("u1"),
        "float8_e5m2fnuz": np.dtype("u1"),
        "int64": np.dtype("<i8"),
        "int32": np.dtype("<i4"),
        "int16": np.dtype("<i2"),
        "int8": np.dtype("i1"),
        "uint64": np.dtype("<u8"),
        "uint32": np.dtype("<u4"),
        "uint16": np.dtype("<u2"),
        "uint8": np.dtype("u1"),
        "bool": np.dtype("?"),
        "complex64": np.dtype("<c8"),
        "complex128": np.dtype("<c16"),
    }
)
"""How each dtype of the format is held by numpy; those that numpy lacks are held as unsigned integers of their bits."""


NARROW: Mapping[str, int] = MappingProxyType(
    {
        "bfloat16": 16,
        "float8_e4m3fn": 17,
        "float8_e4m3fnuz": 18,
        "float8_e5m2": 19,
        "float8_e5m2fnuz": 20,
        "uint4": 21,
        "int4": 22,
    }
)
"""dtypes that numpy lacks and ml_dtypes has, with ONNX's numbers. Source: onnx.proto3, TensorProto.DataType."""


def is_narrow(array: Any) -> bool:
    """Whether an array has a dtype that numpy lacks."""
    return isinstance(array, np.ndarray) and array.dtype.name in NARROW


def aligned(offset: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment` from `offset` on."""
    return -(-offset // alignment) * alignment


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int | None:
    """Bytes of a tensor, None for a dtype that the format does not have. Exact: Python's integers do not overflow."""
    storage = STORAGE.get(dtype)
    return None if storage is None else math.prod(shape) * storage.itemsize
