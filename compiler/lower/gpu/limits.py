"""What schedules for GPUs may assume of a device."""

from __future__ import annotations

from dataclasses import dataclass

ENDLESS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What a schedule may assume of the device.

    `group` is the most work items of a work group, `grid` the most groups along an axis. `vectors` marks devices that
    run work items one after another on vector units (PoCL): they want large tiles per work item, GPUs want many work
    items. `dtypes` are those of tensors. `tile` is the largest side and the largest area of the tile of outputs
    that a work item of a GPU computes: a trade of work items and registers against loads per output.
    """

    group: int
    vectors: bool
    dtypes: frozenset[str]
    grid: int = ENDLESS
    tile: tuple[int, int] = (4, 16)
