"""Convolutions with vectors along output channels: how a schedule divides the work into tiles, and the modelled time.

A tile is some pixels times some vectors of channels: sums in registers, to which each step adds the products of one
number of each pixel with the vectors of weights of one term. It walks over all its terms, or, with many input channels,
over those of one block of them: what all tiles of a chunk of rows read of a block stays in a first-level cache, and
their sums are kept in memory from block to block (Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication", 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.copied_rows import MOST_UNROLLED, far_time
from heterocc.compiler.lower.cpu.generate.convolution.dense_rows import DenseRows
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import Part, parts_of, share_inside, taps_of
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import MOST_ROWS, registers_of, runs
from heterocc.compiler.lower.kernels.expressions import divisor_up_to

HELD = 2
"""The number of 32 registers that loops over the taps of copied rows need besides sums and weights."""

TURN_CYCLES = 0.2
STORE_CYCLES = 0.3
STORE_FAR_CYCLES = 0.7
"""The time in cycles in which a sum is turned, in whole vectors of pixels, and then stored; also if the sums of a line
do not stay in a first-level cache until then."""

PLACE_CYCLES = 12.0
"""The time in cycles of computing the place of a pixel of several rows, for each tile of channels."""

INSIDE_CYCLES = 1.5
"""The time in cycles that loops over taps inside the input add to a step."""

TAP_CYCLES = 0.3
"""The time in cycles that loops over one tap after the other of copied rows add to a step."""

LOOKED_UP = 0.8
"""The share of pixels of several rows whose places are loaded for each term."""

KEPT_CYCLES = 1.5
"""The time of loading a vector of sums of the blocks before, and of storing it."""

LINES_BYTES = 85
"""The bytes of the cache lines with the pixels of a tile, in the mean of their places."""

UNROLLED_BYTES = 128 << 10
"""The limit on weights of a block for which its inputs become a multiple of the terms that are unrolled: with two of
128 taps, tiles took 1.2 times as long as with one or four."""

MOST_TOGETHER = 64
"""The limit on input channels that come one after the other for a tap: what a tile reads of them at all taps is to stay
in a first-level cache."""

FEWEST_TOGETHER = 16
"""The smallest number of them: fewer would leave little between two loops."""


def inputs_together(inputs: int) -> int:
    """The number of input channels in turn for a tap: all, if no number within the limits divides them."""
    together = divisor_up_to(inputs, MOST_TOGETHER)
    return together if together >= FEWEST_TOGETHER else inputs


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a convolution is computed in tiles of pixels times vectors of channels.

    Outputs are computed in chunks of `rows` rows, and tiles are cut from lines of `deep` rows of a chunk each. Inputs
    are read in place, or copied for a chunk: the pixels that 1x1 with strides reads side by side, or rows with padding.
    Chunks and parts of the channels are the tasks of threads. Sums are kept between blocks of input channels if it is
    `blocked`. `form` is the name of the form in the table of corrections.
    """

    form: str
    source: Literal["in place", "pixels", "rows"]
    rows: int
    deep: int = 1
    blocked: bool = False

    @property
    def detail(self) -> str:
        """What tells it from others of the form."""
        return "" if self.source != "rows" or self.blocked else f"{self.deep}"

    def __str__(self) -> str:
        return f"{self.form} {self.detail}".rstrip()


class Tiling:
    """The tiles of a convolution of fixed sizes by a schedule, and their time.

    A last vector of channels that would exceed them starts earlier, and computes outputs of the one before again. In
    place, a row of outputs is divided into `columns`, parts whose outputs have the same taps inside the input: no
    padding is needed then, and taps in the padding take no time.
    """

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa, schedule: Schedule) -> None:
        self.kernel, self.conv, self.isa, self.schedule = kernel, conv, isa, schedule
        self.chunks = -(-conv.rows.places // schedule.rows)
        self.lines = -(-schedule.rows // schedule.deep)
        self.copied = DenseRows(kernel, conv, isa, schedule.rows) if schedule.source == "rows" else None
        self.apart = schedule.source == "in place" and schedule.deep == 1
        whole = Part(0, schedule.deep * conv.columns.places, 0, conv.columns.taps)
        self.columns = parts_of(conv.columns) if self.apart else (whole,)
        self._vectors = -(-conv.outputs // isa.lanes)
        tall, wide = self._choose()
        self.vector_runs = runs(self._vectors, wide)
        self.tiles = [(p, r) for p in self.columns for r in runs(p.end - p.start, tall)]
        self.inputs = self._inputs_of_block() if schedule.blocked else conv.inputs
        self.blocks = conv.inputs // self.inputs
        self.in_turn = self.inputs if schedule.blocked or conv.taps == 1 else inputs_together(conv.inputs)
        taps = (conv.rows.taps, conv.columns.taps)
        self.packing = Panels(
            conv.weight,
            (conv.groups, conv.outputs, conv.inputs // self.in_turn, self.in_turn, *taps),
            (0, 2, 4, 5, 3, 1),
            conv.groups * self.blocks,
            self.inputs * conv.taps,
            conv.outputs,
            isa.lanes,
            self.vector_runs,
        )
        # No more taps are outside than the first and the last outputs have within their reach.
        few = conv.columns.reach <= (1 - isa.core.inside) * conv.columns.stride * conv.columns.places
        by_row = schedule.blocked and schedule.source == "rows" and schedule.deep == 1
        inside = share_inside(conv.columns, self.tallest) if by_row and not few else 1.0
        self.leaves_out = inside <= isa.core.inside
        self._sum_cycles = self._cycles_of_sums(self._row_cycles(tall, wide) * (inside if self.leaves_out else 1.0))
        self.parts = self._parts()

    @property
    def packings(self) -> tuple[Panels, ...]:
        """The layout of the weights."""
        return (self.packing,)

    @property
    def pixels(self) -> int:
        """The number of pixels of a line."""
        return max(p.end for p in self.columns)

    @property
    def tallest(self) -> int:
        """The number of pixels of the largest tile."""
        return max(r.size for _, r in self.tiles)

    @property
    def widest(self) -> int:
        """The number of channels of the largest tile."""
        return max(r.size for r in self.vector_runs) * self.isa.lanes

    @property
    def across(self) -> int:
        """The length of a line of turned sums."""
        return -(-self.pixels // self.isa.lanes) * self.isa.lanes

    @property
    def in_one_tile(self) -> bool:
        """Whether a line is one tile."""
        return len(self.tiles) == 1 and self.tiles[0][1].count == 1

    @property
    def by_tap(self) -> bool:
        """Whether the taps of a row are written out around loops over input channels, of pixels that have each."""
        copied = self.schedule.source == "rows" and not self.schedule.blocked
        return copied and self.in_one_tile and self.conv.columns.taps <= MOST_UNROLLED

    @property
    def skips_rows(self) -> bool:
        """Whether rows of taps that are in the padding for all of a line are left out."""
        return self.apart or self.schedule.deep < self.schedule.rows or self.conv.rows.places == 1

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        return self._cycles_in(self.parts)

    def _choose(self) -> tuple[int, int]:
        """Pixels and vectors of a tile with the least modelled time."""
        longest = min(MOST_ROWS, self.pixels)
        whole = self.schedule.deep > 1 and not self.schedule.blocked
        sizes = [
            (tall, wide)
            for wide in range(1, self._vectors + 1)
            for tall in range(longest if whole else 1, longest + 1)
            if tall * wide + wide + self._held(tall) <= self.isa.registers
            and registers_of(tall, wide, self.isa) <= self.isa.registers
        ]
        return min(sizes, key=lambda size: (self._row_cycles(*size) * self._sharing(size[1]), -size[0], size))

    def _sharing(self, wide: int) -> float:
        """The factor of the time for tasks that threads lack, with tiles of `wide` vectors."""
        tasks = self.conv.usual_images * self.chunks * -(-self._vectors // wide)
        return emit.sharing(self.conv.work, tasks)

    def _held(self, tall: int) -> int:
        """Registers for the inputs of `tall` pixels, and spare ones."""
        schedule, columns = self.schedule, self.conv.columns
        if schedule.source == "rows" and not schedule.blocked:
            if not self.isa.core.few_registers:
                return HELD
            if columns.taps > 1 and columns.stride <= columns.reach:
                return tall + 1  # LLVM keeps those that several taps read, and computes with what is left
        return 1 + self.isa.core.spare

    def _row_cycles(self, tall: int, wide: int) -> float:
        """Modelled time of a line for one input channel and one row of taps."""
        conv, vectors = self.conv, runs(self._vectors, wide)
        whole = self.schedule.source == "rows" and not self.schedule.blocked
        if whole and tall >= self.pixels and conv.columns.taps <= MOST_UNROLLED:
            inside = [sum(map(len, self.with_tap(tap))) for tap in range(conv.columns.taps)]
            return sum(v.count * self._step_cycles(pixels, v.size) for v in vectors for pixels in inside if pixels)
        return sum(
            r.count * v.count * (p.last - p.first) * self._step_cycles(r.size, v.size)
            for p in self.columns
            for r in runs(p.end - p.start, tall)
            for v in vectors
        )

    def _step_cycles(self, tall: int, wide: int) -> float:
        """Modelled time of one term in a tile; few pixels wait for weights that a first-level cache does not hold."""
        conv, schedule = self.conv, self.schedule
        if schedule.blocked:
            looked_up = LOOKED_UP * tall if schedule.source == "rows" and schedule.deep > 1 else 0.0
            return max(self.isa.core.step_cycles(tall, wide), (tall + looked_up + wide) / 2)
        loops = TAP_CYCLES if schedule.source == "rows" else INSIDE_CYCLES
        weights = 4 * conv.inputs * conv.taps * wide * self.isa.lanes
        core = self.isa.core
        far = core.second_miss if weights > core.far_bytes else core.first_miss if weights > core.first_cache else 0.0
        return max(self.isa.core.step_cycles(tall, wide) + loops, far * wide)

    def with_tap(self, tap: int) -> Sequence[range]:
        """The pixels of a line, all in one tile, whose tap of this number is not in the padding at the sides."""
        window = self.conv.columns
        inside = [place for place in range(window.places) if tap in range(*taps_of(window, place))]
        if len(inside) == window.places:
            return [range(self.pixels)]
        starts = [row * window.places for row in range(self.schedule.deep)] if inside else []
        return [range(start + inside[0], start + inside[-1] + 1) for start in starts]

    def _inputs_of_block(self) -> int:
        """The largest number of input channels of a block with which tiles read from the first-level cache.

        Of 1x1 convolutions all, unless the core has `blocked_points`: a Zen 4 takes 1.01 to 1.04 times as
        long in blocks of them.
        """
        conv, points = self.conv, self.schedule.source != "rows"
        core = self.isa.core
        if points and not core.blocked_points:
            return conv.inputs
        weights = conv.taps * self.widest * 4
        most = core.weight_bytes // weights
        if points:
            near = core.near_bytes // (weights + 4 * self.pixels)
            most = near if near >= core.block_terms else core.tile_bytes // (weights + LINES_BYTES)
        divisors = [n for n in range(1, conv.inputs + 1) if conv.inputs % n == 0 and n * conv.taps >= core.block_terms]
        block = max((n for n in divisors if n <= most), default=min(divisors, default=conv.inputs))
        if points or block % emit.UNROLL == 0:
            return block
        unrolled = min((n for n in divisors if n % emit.UNROLL == 0 and n > block), default=block)
        return unrolled if unrolled * weights <= UNROLLED_BYTES else block

    @property
    def _tap_rows(self) -> float:
        """The number of rows of taps that a line computes, in the mean."""
        window, deep = self.conv.rows, self.schedule.deep
        if not self.skips_rows:
            return window.taps
        tops = [min(top, window.places - deep) for top in range(0, window.places, deep)]
        return sum(taps_of(window, top)[1] - taps_of(window, top + deep - 1)[0] for top in tops) / len(tops)

    def _cycles_of_sums(self, row_cycles: float) -> float:
        """Modelled time of the sums of a chunk, if a line takes so long for one channel and one row of taps."""
        kept = (self.blocks - 1) * self._vectors * KEPT_CYCLES
        looked_up = self.schedule.source == "rows" and self.schedule.deep > 1 and not self.in_one_tile
        places = self.blocks * sum(r.count for r in self.vector_runs) * PLACE_CYCLES if looked_up else 0.0
        computed = self._tap_rows * self.conv.inputs * row_cycles * self._far
        return self.lines * (computed + self.pixels * (kept + places))

    @property
    def _far(self) -> float:
        """The factor of the time of sums if what tiles read does not stay in a near cache."""
        conv = self.conv
        core = self.isa.core
        if conv.taps == 1 and core.few_registers:
            return core.far_points if self.inputs * (LINES_BYTES + 4 * self.widest) > core.point_bytes else 1.0
        line = self.pixels if self.schedule.source == "pixels" else self.schedule.deep * conv.columns.size
        read = 4 * conv.inputs * conv.rows.taps * line if self.copied is None else self.copied.row_bytes
        return far_time(read // self.blocks, 4 * self.widest * self.packing.terms, self.isa)

    @property
    def _copy_cycles(self) -> float:
        """Modelled time of copying what a chunk reads of all input channels."""
        if self.copied is not None:
            return self.copied.all_copied / self.chunks
        numbers = self.conv.inputs * self.lines * self.pixels if self.schedule.source == "pixels" else 0
        return numbers * self.isa.core.copied_number

    def _parts(self) -> int:
        """The number of parts of the output channels, each of which copies the inputs by itself."""
        conv, tiles = self.conv, sum(r.count for r in self.vector_runs)
        images = conv.usual_images
        parts = emit.shares(conv.work, images * self.chunks, tiles)
        sums = 4 * self.lines * self.pixels * conv.outputs if self.blocks > 1 else 0
        held = max(1, min(tiles, -(-sums // self.isa.core.sum_bytes)))
        return min(range(held, max(held, parts) + 1), key=self._cycles_in)

    def _cycles_in(self, parts: int) -> float:
        """Modelled time of the convolution, with so many parts of the output channels."""
        conv = self.conv
        images = conv.usual_images
        near = 8 * self.widest * self.across <= self.isa.core.first_cache
        stored = TURN_CYCLES * self.across + (STORE_CYCLES if near else STORE_FAR_CYCLES) * self.pixels
        sums = images * self.chunks * (self._sum_cycles + self.lines * conv.outputs * stored)
        copies = images * self.chunks * parts * self._copy_cycles
        again = images * self.copied.again if self.copied is not None else 0.0
        return (sums + copies) * emit.sharing(conv.work, images * self.chunks * parts) + again
