"""Inputs read and results written in the caller's own arrays, if CPU code can work there.

Each context has its own memory for every value; inputs are copied into it and results out of it. For a large value the
copies take as long as a simple operator. If only CPU code uses the value, and that code accepts arguments at any
address, its tensor points to the caller's array during a run instead.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from heterocc.artifacts.manifest import Variant
from heterocc.runtime.execute.memory import Buffers
from heterocc.runtime.feeds import Array
from heterocc.runtime.plan.schedule import HOST, Schedule
from heterocc.runtime.plan.slots import ALIGNMENT

MIN_BYTES = 1 << 14
"""The smallest size in bytes of values for which Python code does this; it copies smaller ones faster."""

KEPT = 2
"""The number of results whose memory a context keeps for later ones: a caller often holds the last one during a run."""

MAX_KEPT_BYTES = 1 << 28
"""The largest such memory in bytes: the system clears new pages at a few gigabytes a second, however many there are."""

_DATA = 24
"""The offset of the data pointer in a tensor object of tvm_ffi: after the header (TVMFFIObject) of 24 bytes."""

_HEAD = object.__basicsize__
"""The offset of the data pointer in numpy's array objects, which is first after the header in its C API."""


def _address_in_object(array: Array) -> int:
    return ctypes.c_void_p.from_address(id(array) + _HEAD).value or 0


def _address_by_name(array: Array) -> int:
    return array.ctypes.data


_sample = np.empty(1)
_address = _address_in_object if _address_in_object(_sample) == _sample.ctypes.data else _address_by_name
"""The address of an array's first element. `ctypes.data` takes over a microsecond."""


_Kept = tuple[Array, int, int]
"""Memory of an earlier result, and the offset and the address of its first aligned byte."""


def _references(kept: list[_Kept], number: int) -> int:
    return sys.getrefcount(kept[number][0])


_UNUSED = _references([(_sample, 0, 0)], 0) - 1
"""The references to memory that only the list of kept memory refers to; `_sample` has one more."""

_COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether counts of references are exact."""


class DirectValue:
    """The tensor of a value that can be pointed at other memory."""

    __slots__ = ("_dtype", "_home", "_kept", "_nbytes", "_pointer", "_shape", "alignment", "array", "moved")

    def __init__(self, pointer: ctypes.c_void_p, array: Array, alignment: int) -> None:
        """`pointer` is the tensor's data pointer, `array` the context's own memory for it."""
        self._pointer = pointer
        self._home = array.ctypes.data
        self._shape, self._dtype, self._nbytes = array.shape, array.dtype, array.nbytes
        self.array = array
        self.alignment = alignment
        self.moved = False
        self._kept: list[_Kept] = []

    @property
    def pointer(self) -> int:
        """The address of the tensor's data pointer."""
        return ctypes.addressof(self._pointer)

    @property
    def is_large(self) -> bool:
        """Whether a copy takes longer than Python code that avoids it."""
        return self._nbytes >= MIN_BYTES

    def move(self, array: Array) -> bool:
        """Point the tensor at an array of its shape and dtype; False if code cannot work there."""
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned and (array.dtype is self._dtype or array.dtype.isnative)):
            return False
        address = _address(array)
        if address % self.alignment:
            return False
        self._pointer.value = address
        self.moved = True
        return True

    def result(self) -> Array:
        """A new array for the value, which the tensor then points at.

        Its memory may be that of an earlier result that nothing refers to any longer: it is in the caches, and the
        system need not clear new pages.
        """
        kept = self._kept
        for number in range(len(kept)):
            if _references(kept, number) == _UNUSED:
                raw, start, address = kept[number]
                break
        else:
            raw = np.empty(self._nbytes + ALIGNMENT, np.uint8)
            start = -_address(raw) % ALIGNMENT
            address = _address(raw) + start
            if _COUNTED and self._nbytes <= MAX_KEPT_BYTES:
                self._kept = [*kept[1 - KEPT :], (raw, start, address)]
        self._pointer.value = address
        self.moved = True
        return np.ndarray(self._shape, self._dtype, raw, start)

    def move_home(self) -> None:
        """Point the tensor at the context's own memory again."""
        self._pointer.value = self._home
        self.moved = False


def direct_values(variant: Variant, plan: Schedule, buffers: Buffers) -> dict[int, DirectValue]:
    """The inputs and outputs of a context that only CPU code touches, by value."""
    elsewhere = {b.value for b in plan.buffers if b.space != HOST or b.users - {HOST}}
    alignments: dict[int, int] = {}
    for index, part in enumerate(variant.partitions):
        values = (*part.inputs, *part.outputs)
        if part.kind != "tvm" or plan.spaces[index] != HOST or plan.objects.intersection(values):
            elsewhere.update(values)
        for value in values:
            alignments[value] = max(alignments.get(value, 1), part.alignment)
    uses = Counter((*variant.inputs, *variant.outputs))
    found = {}
    for value in uses.keys() - elsewhere:
        array, tensor = buffers.arrays.get(value), buffers.tensors.get((value, HOST))
        if array is None or tensor is None or value not in alignments:
            continue
        if uses[value] > 1:  # an input that is an output is copied
            continue
        pointer = ctypes.c_void_p.from_address(tensor.__chandle__() + _DATA)
        if pointer.value == array.ctypes.data:
            found[value] = DirectValue(pointer, array, alignments[value])
    return found


def write_to(direct: DirectValue | None, target: Array, others: Iterable[Any]) -> bool:
    """Have a result written to `target`, an array of the caller's; False if it must be copied there.

    CPU code is compiled for memory that does not overlap: `others` are what else a run reads and writes.
    """
    if direct is None or any(isinstance(o, np.ndarray) and np.may_share_memory(target, o) for o in others):
        return False
    return direct.move(target)


def go_home(values: Mapping[int, DirectValue]) -> None:
    """Leave no tensor pointed at memory that is not the context's."""
    for value in values.values():
        if value.moved:
            value.move_home()
