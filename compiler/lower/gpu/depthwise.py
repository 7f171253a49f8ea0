"""The schedule for windows over planes: depthwise convolution and pooling."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.window import windows_of
from heterocc.compiler.lower.gpu.window_items import ItemWriter, tile_of
from heterocc.compiler.lower.gpu.window_vectors import VectorWindowWriter, shape_of


def schedule_windows(function: Any, limits: Limits, _: Collection[int] = ()) -> Packed | None:
    """The scheduled kernel, or None where it slides no window, or one too large to be written out."""
    windows = windows_of(function)
    if windows is None:
        return None
    if limits.vectors:
        shape = shape_of(windows, limits)
        return Packed(VectorWindowWriter(windows, shape, limits.grid).kernel(function)) if shape else None
    if windows.steps > 64:
        return None
    return Packed(ItemWriter(windows, tile_of(windows, limits), limits).kernel(function))
