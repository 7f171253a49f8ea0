"""The tensor arguments of kernels that are timed, and values for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm import tirx


Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """The shape and dtype of a kernel's tensor argument."""

    shape: tuple[int, ...]
    dtype: str


def tensors_of(function: tirx.PrimFunc) -> tuple[Tensor, ...]:
    """The tensor arguments of a kernel, in order. Raises TypeError if an argument is not a tensor."""
    return tuple(Tensor(tuple(int(n) for n in p.ty.shape), str(p.ty.dtype)) for p in function.params)


def random_values(tensor: Tensor, seed: int) -> Array:
    """Values of an input.

    Floating-point numbers are in [0.25, 1.25), so that functions of them are neither NaN nor denormal. Integers of 32
    and 64 bits may be indices, so they are zero, which is always in range; narrower ones are below 4.
    """
    rng = np.random.default_rng(seed)
    if tensor.dtype.startswith("float"):
        return (rng.random(tensor.shape, np.float32) + 0.25).astype(tensor.dtype)
    most = 1 if tensor.dtype.endswith(("32", "64")) else 2 if tensor.dtype == "bool" else 4
    return rng.integers(0, most, tensor.shape).astype(tensor.dtype)
