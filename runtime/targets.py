"""A caller's arrays for results: `out` of `Session.run`."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import container, is_text
from heterocc.artifacts.errors import FeedError
from heterocc.artifacts.manifest import TensorSpec
from heterocc.runtime.feeds import Array, InputCheck, TensorInfo
from heterocc.runtime.plan.schedule import static_shape


def check_out(name: str, out: Any, spec: TensorSpec, where: str) -> Array:
    """Check the dtype and shape of a caller's array for an output, and that it is writeable. Raises FeedError.

    Sizes that only the run knows are compared by `fill_out`.
    """
    if not isinstance(out, np.ndarray):
        raise FeedError(f"out['{name}'] must be a numpy array, got {type(out).__name__}", where=where)
    if container(spec.dtype) is not None:
        raise FeedError(
            f"output '{name}' is {spec.dtype} and cannot be written to an array",
            where=where,
            hint="leave it out of `out`",
        )
    info = TensorInfo.of(spec)
    dtype = "object" if is_text(spec.dtype) else spec.dtype
    if out.dtype.newbyteorder("=").name != dtype or not InputCheck(info, where).fits(out.shape):
        shape = static_shape(spec)
        raise FeedError(
            f"out['{name}'] must be {dtype} {info.shape_text()}, got {out.dtype.name} {list(out.shape)}",
            where=where,
            hint="give an array of the result's shape" if shape is None else f"np.empty({shape}, {spec.dtype!r})",
        )
    if not out.flags.writeable:
        raise FeedError(f"out['{name}'] is read-only", where=where, hint="give an array that may be written")
    return out


def fill_out(name: str, out: Array, result: Array, where: str) -> Array:
    """Copy a result of a size that only the run knows to the caller's array. Raises FeedError if the shapes differ."""
    if out.shape != result.shape:
        raise FeedError(
            f"out['{name}'] has the shape {list(out.shape)}, and the result {list(result.shape)}",
            where=where,
            hint="leave it out of `out` where the size is not known before",
        )
    np.copyto(out, result)
    return out
