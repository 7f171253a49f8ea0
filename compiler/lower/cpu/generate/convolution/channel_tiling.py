"""Convolutions with vectors along output channels: how they are divided into tiles, and the modelled time.

A tile is some pixels of a row times some vectors of channels: sums in registers, to which each step adds the products
of one number of each pixel with the vectors of weights of one term. It walks over all its terms, or, with many input
channels, over those of one block of them: what tiles read of it stays in a first-level cache, and sums of all rows are
kept in memory from block to block (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008).
"""

from __future__ import annotations

from dataclasses import replace

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window
from heterocc.compiler.lower.cpu.generate.convolution.input_rows import InputRows
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import taps_of
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import MOST_ROWS, registers_of, runs
from heterocc.compiler.lower.cpu.sizes import as_number, typical
from heterocc.compiler.lower.kernels.expressions import divisor_up_to

HELD = 2
"""The number of 32 registers that loops over the taps of a row need besides sums and weights."""

TURN_CYCLES = 0.2
STORE_CYCLES = 0.3
STORE_FAR_CYCLES = 0.7
"""The time in cycles in which a sum is turned, in whole vectors of pixels, and then stored; also if the sums of a row
do not stay in a first-level cache until then."""

TAP_CYCLES = 0.3
"""The time in cycles that loops over one tap after the other add to a step."""

LINES_BYTES = 85
"""The bytes of the cache lines with the pixels of a tile, in the mean of their places."""

FEWEST_TERMS = 48
"""The least terms of a block: the sums of fewer would mostly be loaded and stored."""

KEPT_CYCLES = 1.5
"""The time of loading a vector of sums of the block before, and of storing it."""

MOST_TOGETHER = 64
"""The limit on input channels that come one after the other for a tap: what a tile reads of them at all taps is to stay
in a first-level cache."""

FEWEST_TOGETHER = 16
"""The smallest number of them: fewer would leave little between two loops."""

USUAL_VECTORS = 2
"""The vectors of most tiles."""

FEWEST_OF_A_ROW = 48
MOST_OF_A_ROW = 224
"""The limits on the pixels of the rows that a map of a 1x1 convolution is divided into: the last tile of a short row
would have few."""


def inputs_together(inputs: int) -> int:
    """The number of input channels in turn for a tap: all, if no number within the limits divides them."""
    together = divisor_up_to(inputs, MOST_TOGETHER)
    return together if together >= FEWEST_TOGETHER else inputs


def in_long_rows(conv: Convolution, isa: Isa) -> Convolution:
    """A 1x1 convolution of all pixels as one of other rows, as many as give threads enough tasks, if some divide them.

    Rows of a narrow map would leave few pixels to the last tile of each.
    """
    lines, places = as_number(conv.rows.places), as_number(conv.columns.places)
    if conv.taps > 1 or conv.is_flattened or (conv.rows.size, conv.columns.size) != (lines, places):
        return conv
    pixels = lines * places
    counts = [n for n in range(-(-pixels // MOST_OF_A_ROW), pixels // FEWEST_OF_A_ROW + 1) if pixels % n == 0]
    if not counts:
        return conv
    wanted = tasks_wanted(conv, isa)
    count = next((n for n in counts if n >= wanted), counts[-1])
    return replace(
        conv, rows=Window(count, 0, 1, 1, 1, count), columns=Window(pixels // count, 0, 1, 1, 1, pixels // count)
    )


def tasks_wanted(conv: Convolution, isa: Isa) -> int:
    """The chunks of an image that give threads enough tasks."""
    if typical(conv.work) < emit.PARALLEL_WORK:
        return 1
    return -(-emit.TASKS // (conv.usual_images * -(-conv.outputs // (USUAL_VECTORS * isa.lanes))))


def without_stride(conv: Convolution) -> Convolution:
    """The convolution with outputs at each column, whose inputs are copied in order: pixels are read one by one."""
    columns = conv.columns
    return replace(conv, columns=replace(columns, stride=1, places=(columns.places - 1) * columns.stride + 1))


class Tiling:
    """The tiles of a convolution of images of a fixed size, and their time.

    Chunks of `rows` rows and parts of the channels are the tasks of threads. Without padding and strides, inputs are
    read where they are; else rows are copied for each chunk. A last vector of channels that would exceed them starts
    earlier, and computes outputs of the one before again.
    """

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa) -> None:
        self.kernel, self.conv, self.isa = kernel, conv, isa
        lines, self.places = as_number(conv.rows.places), as_number(conv.columns.places)
        few = 1 if conv.taps == 1 else -(-lines // tasks_wanted(conv, isa))
        inside = all(w.is_inside and w.stride == 1 for w in (conv.rows, conv.columns)) and not conv.is_flattened
        self.input_rows = InputRows(kernel, without_stride(conv), isa, conv.columns.stride, few if inside else 0)
        self.rows, self.chunks = as_number(self.input_rows.rows), as_number(self.input_rows.chunks)
        self._vectors = -(-conv.outputs // isa.lanes)
        usual = USUAL_VECTORS * isa.lanes
        self._blocked = isa.core.block_bytes > 0 and conv.inputs * self._input_bytes(usual) > isa.core.block_bytes
        tall, wide = self._choose()
        self.vector_runs, self.pixel_runs = runs(self._vectors, wide), runs(self.places, tall)
        self.inputs = self._inputs_of_block() if self._blocked else conv.inputs
        self.blocks = conv.inputs // self.inputs
        self.in_turn = self.inputs if self._blocked or conv.taps == 1 else inputs_together(conv.inputs)
        self.packing = Panels(
            conv.weight,
            (conv.groups, conv.outputs, conv.inputs // self.in_turn, self.in_turn, conv.rows.taps, conv.columns.taps),
            (0, 2, 4, 5, 3, 1),
            conv.groups,
            conv.inputs * conv.taps,
            conv.outputs,
            isa.lanes,
            self.vector_runs,
        )
        self.packings = (self.packing,)
        self.parts = self._parts()

    @property
    def widest(self) -> int:
        """The number of channels of the largest tile."""
        return max(r.size for r in self.vector_runs) * self.isa.lanes

    @property
    def tallest(self) -> int:
        """The number of pixels of the largest tile."""
        return max(r.size for r in self.pixel_runs)

    @property
    def leaves_out(self) -> bool:
        """Whether the first tile of a row has a tap that is in the padding for all of its pixels."""
        return as_number(self.conv.columns.before) > (self.tallest - 1) * self.conv.columns.stride

    @property
    def across(self) -> int:
        """The length of a row of turned sums."""
        return -(-self.places // self.isa.lanes) * self.isa.lanes

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        return self._cycles_in(self.parts)

    def _input_bytes(self, wide: int) -> int:
        """What a tile of `wide` channels reads of an input channel: weights, and of 1x1 whole lines of the cache."""
        return 4 * self.conv.taps * wide + (LINES_BYTES if self.input_rows.in_place and self.conv.taps == 1 else 0)

    def _inputs_of_block(self) -> int:
        """The input channels of a block."""
        conv, most = self.conv, self.isa.core.block_bytes // self._input_bytes(self.widest)
        sizes = [n for n in range(1, conv.inputs + 1) if conv.inputs % n == 0 and n * conv.taps >= FEWEST_TERMS]
        return max((n for n in sizes if n <= most), default=min(sizes, default=conv.inputs))

    def _choose(self) -> tuple[int, int]:
        """Pixels and vectors of a tile with the least modelled time."""
        sizes = [
            (tall, wide)
            for wide in range(1, self._vectors + 1)
            for tall in range(1, min(MOST_ROWS, self.places) + 1)
            if tall * wide + wide + self._held(tall) <= self.isa.registers
            and registers_of(tall, wide, self.isa.core) <= self.isa.registers
        ]
        return min(sizes, key=lambda size: (self._row_cycles(*size) * self._sharing(size[1]), -size[0], size))

    def _sharing(self, wide: int) -> float:
        """The factor of the time for tasks that threads lack, with tiles of `wide` vectors."""
        tasks = self.conv.usual_images * self.chunks * -(-self._vectors // wide)
        return emit.sharing(self.conv.work, tasks)

    def _held(self, tall: int) -> int:
        """Registers for the inputs of `tall` pixels, and spare ones."""
        columns, core = self.conv.columns, self.isa.core
        if self.input_rows.in_place or self._blocked:
            return 1 + core.spare
        if core.few_registers and columns.taps > 1 and columns.stride <= columns.reach:
            return tall + 1  # LLVM keeps those that several taps read, and computes with what is left
        return 1 if core.few_registers else HELD

    def _row_cycles(self, tall: int, wide: int) -> float:
        """Modelled time of a row for one input channel and one row of taps."""
        tiles = [(p, v) for p in runs(self.places, tall) for v in runs(self._vectors, wide)]
        steps = (typical(p.count) * typical(v.count) * self._step_cycles(p.size, v.size) for p, v in tiles)
        return self.conv.columns.taps * sum(steps)

    def _step_cycles(self, tall: int, wide: int) -> float:
        """Modelled time of one term in a tile; few pixels wait for weights that a first-level cache does not hold."""
        conv, core = self.conv, self.isa.core
        if self._blocked:
            return max(core.step_cycles(tall, wide), (tall + wide) / 2)
        loops = TAP_CYCLES if conv.taps > 1 else 0.0
        weights = 4 * conv.inputs * conv.taps * wide * self.isa.lanes
        far = core.second_miss if weights > core.far_bytes else core.first_miss if weights > core.first_cache else 0.0
        return max(core.step_cycles(tall, wide) + loops, far * wide)

    @property
    def _sum_cycles(self) -> float:
        """Modelled time of the sums of a chunk."""
        conv = self.conv
        lines = as_number(conv.rows.places)
        tap_rows = sum(len(taps_of(conv.rows, place)) for place in range(lines)) / lines
        row = self._row_cycles(self.tallest, self.widest // self.isa.lanes)
        return self.rows * tap_rows * conv.inputs * row

    def _parts(self) -> int:
        """The number of parts of the output channels, each of which copies the inputs by itself."""
        tiles = sum(r.count for r in self.vector_runs)
        most = emit.shares(self.conv.work, self.conv.usual_images * self.chunks, tiles)
        return min(range(1, as_number(most) + 1), key=self._cycles_in)

    def _cycles_in(self, parts: int) -> float:
        """Modelled time of the convolution, with so many parts of the output channels."""
        conv, chunks = self.conv, self.conv.usual_images * self.chunks
        near = 8 * self.widest * self.across <= self.isa.core.first_cache
        kept = (self.blocks - 1) * self._vectors * KEPT_CYCLES * self.places
        stored = TURN_CYCLES * self.across + (STORE_CYCLES if near else STORE_FAR_CYCLES) * self.places
        sums = chunks * (self._sum_cycles + self.rows * (conv.outputs * stored + kept))
        copies = conv.usual_images * parts * self.input_rows.all_copied
        again = conv.usual_images * self.input_rows.again_cycles(self.chunks)
        return (sums + copies) * emit.sharing(conv.work, chunks * parts) + again
