"""The schedule for windows over planes: depthwise convolution and pooling."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.window.window import windows_of
from heterocc.compiler.lower.gpu.window.window_items import ItemWriter, tile_of
from heterocc.compiler.lower.gpu.window.window_vectors import VectorWindowWriter, shape_of

if TYPE_CHECKING:
    from tvm import tirx


MOST_STEPS = 64
"""The most taps of a window that is unrolled in a work item of a GPU."""


def slides_items(function: tirx.PrimFunc) -> bool:
    """Whether this schedule applies to the kernel on devices without `vectors`."""
    windows = windows_of(function)
    return windows is not None and windows.steps <= MOST_STEPS


def schedule_windows(function: tirx.PrimFunc, limits: Limits, _: Collection[int] = ()) -> Packed | None:
    """The scheduled kernel; None if it does not slide a window, or one too large to be unrolled."""
    windows = windows_of(function)
    if windows is None:
        return None
    if limits.vectors:
        shape = shape_of(windows, limits)
        return Packed(VectorWindowWriter(windows, shape, limits.grid).kernel(function)) if shape else None
    if windows.steps > MOST_STEPS:
        return None
    return Packed(ItemWriter(windows, tile_of(windows, limits), limits).kernel(function))
