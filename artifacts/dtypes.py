"""The closed list of dtypes that a bundle's tensors may have, with their numpy representations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.packed import PackedArray

COMPUTED: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        "float64": np.dtype("<f8"),
        "float32": np.dtype("<f4"),
        "float16": np.dtype("<f2"),
        "int64": np.dtype("<i8"),
        "int32": np.dtype("<i4"),
        "int16": np.dtype("<i2"),
        "int8": np.dtype("i1"),
        "uint64": np.dtype("<u8"),
        "uint32": np.dtype("<u4"),
        "uint16": np.dtype("<u2"),
        "uint8": np.dtype("u1"),
        "bool": np.dtype("?"),
    }
)
"""The dtypes that compiled code can read and write. Each device supports some or all of them."""

NUMERIC_DTYPES = frozenset(COMPUTED)
"""Their names."""

NUMPY: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {**COMPUTED, "complex64": np.dtype("<c8"), "complex128": np.dtype("<c16")}
)
"""The dtypes that numpy has, as a closed list: numpy also accepts `>f4`, `longdouble` and those of ml_dtypes."""

STORAGE: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        **NUMPY,
        "bfloat16": np.dtype("<u2"),
        "float8_e4m3fn": np.dtype("u1"),
        "float8_e4m3fnuz": np.dtype("u1"),
        "float8_e5m2": np.dtype("u1"),
        "float8_e5m2fnuz": np.dtype("u1"),
    }
)
"""The dtypes of weights. Those that numpy lacks are stored as unsigned integers of the same bits."""

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

CARRIED: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        "bfloat16": np.dtype("<u2"),
        "float8_e4m3fn": np.dtype("u1"),
        "float8_e4m3fnuz": np.dtype("u1"),
        "float8_e5m2": np.dtype("u1"),
        "float8_e5m2fnuz": np.dtype("u1"),
        "uint4": np.dtype("u1"),
        "int4": np.dtype("i1"),
    }
)
"""How compiled code for CPUs has them: floating-point numbers as their bits, 4-bit integers as 8-bit ones."""

UNSTORED = frozenset(
    [
        *("float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
        *("int4", "uint4", "int2", "uint2"),
        *("string", "undefined"),
    ]
)
"""The other dtypes of values: only ONNX Runtime handles them."""

_TEXT = frozenset(["string", "tensor(string)", "str", "object"])

_ELEMENT = (
    r"(?:undefined|float|double|float16|bfloat16|string|bool|complex64|complex128|u?int(?:2|4|8|16|32|64)|"
    r"float8e4m3fn|float8e4m3fnuz|float8e5m2|float8e5m2fnuz|float8e8m0|float6e2m3|float6e3m2|float4e2m1)"
)
_TYPE = rf"((?:seq\(|optional\(|map\({_ELEMENT},){{0,8}})(?:(?:tensor|sparse)\({_ELEMENT}\)|undefined)(\)*)"
"""Compiled by `re` when it is used, because few bundles have such dtypes and compiling takes a millisecond."""


def is_value_dtype(text: str) -> bool:
    """Return whether a value may have this dtype: a name in the lists above, or the text of an ONNX type.

    Such a text is `tensor(float)` or `sparse(float)`, nested in at most eight of `seq(…)`, `optional(…)` and
    `map(int64,…)`.
    """
    if text in STORAGE or text in UNSTORED or text in _TEXT:
        return True
    found = re.fullmatch(_TYPE, text) if len(text) <= 256 else None
    return found is not None and found[1].count("(") == len(found[2])


@frozen
class Container:
    """A type whose values are sequences of tensors, or optional: a tensor or such a sequence, or nothing.

    `dtype` is that of the tensors, one of COMPUTED.
    """

    dtype: str
    sequence: bool
    optional: bool

    @property
    def text(self) -> str:
        """ONNX's text for the type, such as `optional(seq(tensor(float)))`."""
        text = f"tensor({_ONNX_NAMES.get(self.dtype, self.dtype)})"
        text = f"seq({text})" if self.sequence else text
        return f"optional({text})" if self.optional else text


@lru_cache(1024)
def container(dtype: str) -> Container | None:
    """The type that this is the text of, if compiled code can have its values; None for tensors and other types."""
    inner, optional = _inside(dtype, "optional")
    inner, sequence = _inside(inner, "seq")
    if not (optional or sequence):
        return None
    element, is_tensor = _inside(inner, "tensor")
    name = _NUMPY_NAMES.get(element, element)
    known = is_tensor and name in COMPUTED and element not in _ONNX_NAMES
    return Container(name, sequence, optional) if known else None


def _inside(text: str, kind: str) -> tuple[str, bool]:
    """The text without `kind(…)` around it, and whether it was there."""
    there = text.startswith(f"{kind}(") and text.endswith(")")
    return (text[len(kind) + 1 : -1], True) if there else (text, False)


_ONNX_NAMES: Mapping[str, str] = MappingProxyType({"float32": "float", "float64": "double"})
_NUMPY_NAMES: Mapping[str, str] = MappingProxyType({onnx: name for name, onnx in _ONNX_NAMES.items()})


def is_text(dtype: str) -> bool:
    """Return whether a dtype means strings."""
    return dtype in _TEXT


def is_narrow(array: Any) -> bool:
    """Return whether an array has a dtype that numpy lacks."""
    return isinstance(array, np.ndarray | PackedArray) and array.dtype.name in NARROW
