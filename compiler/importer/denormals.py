"""Denormal numbers in a model's constants, which CPU code takes for zeros."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

import numpy as np

from heterocc.compiler.importer.model import ImportedModel

_EXPONENTS = MappingProxyType(
    {"float32": ("uint32", 0xFF << 23), "float64": ("uint64", 0x7FF << 52), "bfloat16": ("uint16", 0xFF << 7)}
)
"""Integers of the same size, and the bits of the exponent. Denormal numbers of float16 are normal ones of float32."""

_CHUNK = 1 << 16
"""Elements that are looked at together: they stay in a cache."""

_Array = np.ndarray[Any, Any]


def without_denormals(model: ImportedModel) -> ImportedModel:
    """The model with zeros in place of denormal constants, and with a note that says in how many there were any."""
    changed = {name: zeroed(array) for name, array in model.weights.items()}
    count = sum(array is not model.weights[name] for name, array in changed.items())
    if not count:
        return model
    which = "1 constant has" if count == 1 else f"{count} constants have"
    note = f"{which} denormal numbers, which code for CPUs takes for zeros (the property `denormals=on` keeps them)"
    return dataclasses.replace(model, weights=MappingProxyType(changed), notes=(*model.notes, note))


def zeroed(array: _Array) -> _Array:
    """The array itself, or a copy in which zeros of the same sign replace denormal numbers."""
    known = _EXPONENTS.get(array.dtype.name)
    if known is None or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return array
    dtype, exponent = known
    bits = array.ravel(order="K").view(dtype)
    most = np.array(exponent, dtype)
    sign = np.array(1 << (8 * array.dtype.itemsize - 1), dtype)
    found: _Array | None = None
    result = array
    for start in range(0, bits.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        small = (part & most) == 0  # zeros, too
        if small.any() and (part[small] & ~sign).any():
            if found is None:
                result = array.copy(order="K")
                found = result.ravel(order="K").view(dtype)
            found[start : start + _CHUNK][small] &= sign
    if found is not None:
        result.flags.writeable = False
    return result
