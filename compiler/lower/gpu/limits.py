"""The limits and properties of a device that schedules for GPUs depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterocc.compiler.lower.kernels.choices import Choose, best

ENDLESS = 2**31 - 1

GRID_DEPTH = 65535
"""The most groups along the third axis of a grid. CUDA allows more along the first axis only."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits and properties of a device.

    `group` is the most work items of a work group, `grid` the most groups along an axis, `shared` the bytes of shared
    memory of a group, `buffers` the most tensors of a launch. `dtypes` are the dtypes that tensors may have. `vectors`
    marks devices that run work items one after another on vector units (PoCL): large tiles per work item suit them,
    while many work items suit GPUs. `software` marks devices that are the cores of a CPU (PoCL, lavapipe): their shared
    memory is not faster than other memory, and barriers are expensive. `tile` is the largest side and the largest area
    of the tile of outputs that a work item of a GPU computes: a large tile needs fewer loads per output, but leaves
    fewer work items and takes more registers. `choose` picks one of a schedule's options.
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
        """Whether the device is a CPU that runs the work items of a group in SIMD lanes, as lavapipe does."""
        return self.software and not self.vectors
