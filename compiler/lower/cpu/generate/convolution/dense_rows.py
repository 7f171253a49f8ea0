"""Copies of rows with padding whose columns stay in order, for vectors along channels.

Such vectors are multiplied by one number of a pixel at a time, read at any stride, so that columns need not be
separated by their remainders. Rows still are: those between the taps of a large stride are not copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.copied_rows import CopiedRows
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window
from heterocc.compiler.lower.cpu.generate.convolution.padded import padded_row, whole_row
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import typical

VECTOR_CYCLES = 1.5
"""The time in cycles of a vector of a row that is loaded by a mask and stored."""

ROW_CYCLES = 12.0
"""The time in cycles that each row adds to that of its vectors if these are loaded by masks."""

REGION = 1500.0
"""The time in cycles to start a shared loop and to wait for its last task."""

FETCH_CYCLES = 2.5
"""The time in cycles by which a number that is copied for all threads is read later, in the mean of both cores."""

TOGETHER_BYTES = 512 << 10
"""The limit in bytes on rows that are copied for all threads."""

Block = Callable[
    [tirx.Buffer, tuple[tirx.Expr, tirx.Expr, tirx.Expr], tuple[tirx.Expr, int], tuple[tirx.Expr, int]], None
]


class DenseRows(CopiedRows):
    """The loops over chunks of output rows, with a copy of each one's input rows, as for vectors along pixels.

    Or threads copy all rows `together`, before they share the outputs: few rows then make many tasks.
    """

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa, together: bool = False) -> None:
        self._widest, self.together = isa.lanes, together
        super().__init__(kernel, found, isa)
        self.joined = False

    @property
    def fits(self) -> bool:
        """Whether this is a form for the convolution: what is copied together is small, and worth several threads."""
        found = self.found
        small = 4 * found.batch * found.groups * self._numbers <= TOGETHER_BYTES
        return not self.together or (found.work >= emit.PARALLEL_WORK and small)

    @property
    def _numbers(self) -> int:
        """The copied numbers of an image's group, if all rows are one chunk."""
        return self.found.inputs * self._phases * self.plane

    @property
    def _phases(self) -> int:
        return len(self.found.rows.phases)

    @property
    def _beyond(self) -> int:
        return self._widest if self.isa.masks else 0

    @property
    def _reads_beyond(self) -> bool:
        return False  # pixels are read one by one

    def _best_rows(self, most: int) -> int:
        return most if self.together else super()._best_rows(most)

    def copying(self, tiles: int) -> float:
        """Modelled time of all copies, with so many tiles of channels."""
        images = self.found.batch * self.found.groups
        if self.together:
            return images * (self.all_copied + FETCH_CYCLES * self._numbers) + REGION
        return images * (self.all_copied * self._parts(images * self.chunks, tiles) + self._again_cycles(self.chunks))

    def _turns(self, tiles: int, turns: int) -> tuple[int, int]:
        """The numbers of parts of tiles and of turns, if rows are copied together."""
        images = self.found.batch * self.found.groups
        parts = emit.shares(self.found.work, images, tiles)
        return parts, emit.shares(self.found.work, images * parts, turns)

    def tasks_of(self, tiles: int, turns: int) -> int:
        """The number of tasks that threads share, of so many tiles of channels and turns to compute these."""
        if not self.together:
            return self.tasks(tiles)
        parts, steps = self._turns(tiles, turns)
        return self.found.batch * self.found.groups * parts * steps

    def write_blocks(self, arguments: Arguments, tiles: int, turns: int, body: Block) -> None:
        """Write the loops over chunks of rows, parts of the `tiles` of channels and of the `turns` of a chunk.

        `body` gets the copy; image, group and first row; and each part with the number of parts.
        """
        found = self.found
        if not self.together:
            self.write_chunks(arguments, tiles, lambda copied, where, part: body(copied, where, part, (index(0), 1)))
            return
        images, flat = found.batch * found.groups, arguments.flat(found.data)
        channels = images * found.inputs
        copied = emit.scratch(channels * self._phases * self.plane + self._overrun())
        copies = emit.shares(found.work, 1, channels)
        with emit.shared_loop(copies, found.work) as task, emit.share_loop(task, copies, channels) as channel:
            self.copy_channel(flat, channel, (copied, channel), index(0))
        parts, steps = self._turns(tiles, turns)
        with emit.shared_loop(images * parts * steps, found.work) as task:
            # Turns change fastest, so that the weights of a tile of channels are read again from a near cache.
            image, group, part, step = emit.unpacked(task, (found.batch, found.groups, parts, steps))
            body(copied, (image, group, index(0)), (part, parts), (step, steps))

    def _copied_columns(self, columns: Window) -> Window:
        return replace(columns, stride=1, places=(columns.places - 1) * columns.stride + 1)

    def _vectors(self, rows: int) -> int:
        return -(-rows * self.found.columns.places // self.isa.lanes)

    def _computed(self, rows: int) -> float:
        return rows * self.found.columns.places / self._widest

    def _copy_cycles(self, rows: int) -> float:
        if not self.isa.masks:
            return super()._copy_cycles(rows)
        vectors = -(-typical(self.pitch) // self._widest)
        return self._copied_lines(rows) * (VECTOR_CYCLES * vectors + ROW_CYCLES)

    def _overrun(self) -> int:
        return self._widest

    def _copy_row(
        self,
        places: tuple[tirx.Buffer, tirx.Expr, tirx.Buffer, tirx.Expr],
        row: tuple[Window, tirx.Expr, bool],
    ) -> None:
        if self.isa.masks:
            whole_row(*places, (self.copied, self.pitch), row, self._widest)
        else:
            padded_row(*places, (self.copied, self.pitch, self.plane), row, self.isa.lanes)

    def pixel(
        self,
        image: tuple[tirx.Expr, tirx.Expr],
        line: tirx.Expr,
        term: tuple[tirx.Expr, tirx.Expr, tirx.Expr, tirx.Expr],
    ) -> tirx.Expr:
        """The place in the copy of what the first output of a line of the chunk reads of a channel, a row and a tap."""
        input_, tap_row, tap, _ = term
        if self.together:
            input_ = (image[0] * index(self.found.groups) + image[1]) * index(self.found.inputs) + input_
        return self.place(input_, tap_row, 0, line) + tap * index(self.found.columns.dilation)

    def beside(self, pixel: tirx.Expr) -> tirx.Expr:
        """The distance of what the output `pixel` columns further reads."""
        return pixel * index(self.found.columns.stride)
