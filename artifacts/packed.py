"""Constants that stay as the file of a model has them: 4-bit integers, two in a byte, and stand-ins in general."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_PIECE = 1 << 22
"""Elements that `pieces` unpacks at once."""


class StandIn(np.lib.mixins.NDArrayOperatorsMixin):
    """A read-only array that stands in place of a numpy array, and is made from fewer bytes each time it is read.

    What a class does not answer itself is asked of the array that its `__array__` makes.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """The shape and the dtype of the array that is made."""
        self.shape, self.dtype = tuple(shape), dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array that is made, as for numpy's arrays."""
        return self.size * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The array itself."""
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *given: Any, **options: Any) -> Any:
        """Compute with the array itself."""
        arrays = (one.__array__() if isinstance(one, StandIn) else one for one in given)
        return getattr(ufunc, method)(*arrays, **options)

    def __getitem__(self, index: Any) -> Any:
        """Elements of the array itself."""
        return self.__array__()[index]

    def __len__(self) -> int:
        """The size of the first axis."""
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        """An attribute of the array itself."""
        # Of protocols, only those here are for stand-ins; fields that are missing are those of an unfinished copy.
        if name.startswith("__") or any(name in getattr(kind, "__slots__", ()) for kind in type(self).__mro__):
            raise AttributeError(name)
        return getattr(self.__array__(), name)


class PackedArray(StandIn):
    """A read-only array of 4-bit integers in half as many bytes, the first of a byte in its low bits.

    The unpacked array has a byte for each element, with its sign.
    """

    __slots__ = ("data", "is_signed")

    def __init__(
        self, data: np.ndarray[Any, Any], shape: Sequence[int], dtype: np.dtype[Any], *, is_signed: bool
    ) -> None:
        """`data` are bytes with two elements each, which have a byte each as unpacked elements of `dtype`."""
        super().__init__(shape, dtype)
        self.data, self.is_signed = data, is_signed

    def view(self, dtype: Any) -> PackedArray:
        """The bytes of the unpacked elements as another dtype of a byte each."""
        return PackedArray(self.data, self.shape, np.dtype(dtype), is_signed=self.is_signed)

    def pieces(self) -> Iterator[np.ndarray[Any, Any]]:
        """The elements in order, some at a time."""
        for first in range(0, self.size, _PIECE):
            yield self._elements(first, min(first + _PIECE, self.size))

    def part(self, axis: int, first: int, last: int) -> np.ndarray[Any, Any]:
        """The rows (axis 0) or columns of a matrix from `first` to before `last`."""
        rows, columns = self.shape
        if axis == 0:
            return self._elements(first * columns, last * columns).reshape(last - first, columns)
        if columns % 2:  # rows begin inside bytes
            return self.__array__()[:, first:last]
        start = first // 2
        both = self.data[: rows * columns // 2].reshape(rows, columns // 2)[:, start : (last + 1) // 2]
        return self._unpacked(both)[:, first - 2 * start : last - 2 * start]

    def stretched(self) -> np.ndarray[Any, Any]:
        """The packed bytes in an array of the unpacked one's shape: only the first half of it is memory to read.

        So ONNX Runtime wants it, which counts elements and reads bytes.
        """
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(self.ndim)]
        return np.lib.stride_tricks.as_strided(self.data, self.shape, strides, writeable=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The unpacked array."""
        made = self._elements(0, self.size).reshape(self.shape)
        made.flags.writeable = False
        return made if dtype is None else made.astype(dtype)

    def _elements(self, first: int, last: int) -> np.ndarray[Any, Any]:
        """Elements by their numbers in order."""
        start = first // 2
        return self._unpacked(self.data[start : (last + 1) // 2])[first - 2 * start : last - 2 * start]

    def _unpacked(self, both: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The two elements of each byte, along the last axis."""
        made = np.empty((*both.shape[:-1], 2 * both.shape[-1]), np.uint8)
        low, high = made[..., 0::2], made[..., 1::2]
        if self.is_signed:
            np.left_shift(both, 4, out=low)
            np.right_shift(low.view(np.int8), 4, out=low.view(np.int8))
            np.right_shift(both.view(np.int8), 4, out=high.view(np.int8))
        else:
            np.bitwise_and(both, 15, out=low)
            np.right_shift(both, 4, out=high)
        return made.view(self.dtype)


def contiguous(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array in C order; a packed one, whose elements are in this order, as it is."""
    # Not ascontiguousarray: that makes one-element vectors of scalars.
    return array if isinstance(array, PackedArray) else np.asarray(array, order="C")
