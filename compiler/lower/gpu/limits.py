"""What schedules for GPUs may assume of a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterocc.compiler.lower.gpu.choices import Choose, best

ENDLESS = 2**31 - 1

GRID_DEPTH = 65535
"""The most groups along the third axis of a grid: CUDA takes more along the first alone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a schedule may assume of the device.

    `group` is the most work items of a work group, `grid` the most groups along an axis, `shared` the bytes of memory
    that a group shares. `dtypes` are those of tensors. `vectors` marks devices that run work items one after another on
    vector units (PoCL): they want large tiles per work item, GPUs want many work items. `software` marks devices that
    are the cores of a CPU (PoCL, lavapipe): there shared memory is no nearer than any other, and a barrier costs.
    `tile` is the largest side and the largest area of the tile of outputs that a work item of a GPU computes: a trade
    of work items and registers against loads per output. `choose` takes one of the options that a schedule has.
    `buffers` is the most tensors that a launch takes.
    """

    group: int
    vectors: bool
    dtypes: frozenset[str]
    grid: int = ENDLESS
    tile: tuple[int, int] = (4, 16)
    shared: int = 0
    software: bool = False
    buffers: int = ENDLESS
    choose: Choose = field(default=best, compare=False, repr=False)

    @property
    def side_by_side(self) -> bool:
        """Whether the device is a CPU that runs work items side by side, as lavapipe does."""
        return self.software and not self.vectors
