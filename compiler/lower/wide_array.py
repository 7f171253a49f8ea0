"""Weights of float16 and bfloat16 as float32, which stay in 16 bits until their numbers are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heterocc.artifacts.packed import StandIn


class WideArray(StandIn):
    """A weight of 16 bits as float32. Its axes can be put in another order, and in another shape, without its numbers.

    A language model's would take twice its size, and most are packed from 16 bits.
    """

    __slots__ = ("narrow",)

    def __init__(self, narrow: np.ndarray) -> None:
        """`narrow` are the numbers, of float16 or of ml_dtypes' bfloat16."""
        super().__init__(narrow.shape, np.dtype(np.float32))
        self.narrow = narrow

    @property
    def bits(self) -> np.ndarray:
        """The numbers as compiled code has them: those of bfloat16 as uint16."""
        return self.narrow if self.narrow.dtype == np.float16 else self.narrow.view(np.uint16)

    @property
    def T(self) -> WideArray:  # noqa: N802  # as numpy calls it
        """The array with its axes in reverse order."""
        return WideArray(self.narrow.T)

    def transpose(self, *axes: Any) -> WideArray:
        """The array with its axes in another order."""
        return WideArray(self.narrow.transpose(*axes))

    def reshape(self, *shape: int | Sequence[int]) -> WideArray:
        """The array in another shape."""
        return WideArray(self.narrow.reshape(*shape))  # type: ignore[arg-type]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The numbers as float32."""
        made = self.narrow.astype(np.float32, order="C")
        made.flags.writeable = False
        return made if dtype is None else made.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        """Some of the numbers as float32."""
        return self.narrow[index].astype(np.float32)


def in_bits(array: np.ndarray, name: str) -> np.ndarray:
    """A weight as numpy's array: one of 16 bits in the type `name` as compiled code has it, if that is its own."""
    return array.bits if isinstance(array, WideArray) and array.bits.dtype.name == name else np.asarray(array)


def as_stored(array: np.ndarray) -> np.ndarray:
    """The numbers of a weight in 16 bits if it is one of those, else the array itself."""
    return array.narrow if isinstance(array, WideArray) else array
