"""Inputs of a block of a convolution by minimal filtering: copied with padding, and transformed tile by tile."""

from __future__ import annotations

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import Filter, FilteredPanels
from heterocc.compiler.lower.cpu.generate.convolution.filtering.model import Blocks, choose_blocks
from heterocc.compiler.lower.cpu.generate.convolution.filtering.transforms import transformed
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window
from heterocc.compiler.lower.cpu.generate.convolution.padded import CopiedRow, copy_row
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import index, overlapping
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import Size, is_number, larger, smaller


class BlockInputs:
    """A generator of the transformed inputs of blocks: [plane][channel][tile].

    A dilated convolution is several without dilation, whose rows and columns are `pitch` and `apart` apart.
    """

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa, filter_: Filter) -> None:
        self.kernel, self.conv, self.filter, self.copying = kernel, conv, filter_, isa
        self.blocks: Blocks = choose_blocks(conv, isa, filter_)
        self.isa = self.blocks.isa
        columns, self.pitch, self.apart = conv.columns, conv.rows.dilation, conv.columns.dilation
        self.wide = self.blocks.wide
        taps, stride = filter_.inputs * self.apart, filter_.outputs * self.apart
        self.across = Window(columns.size, columns.before, taps, stride, 1, self.wide)
        self.narrow = isa.narrowed(self.wide).lanes if is_number(self.wide) else isa.lanes
        # Rows of outputs follow each other, but for those whose columns come in turns.
        padded = stride * larger(self.wide, self.narrow)
        self.row_pitch = columns.places if self.apart == 1 else padded
        self.rows = smaller(filter_.outputs * self.blocks.tall, -(-conv.rows.places // self.pitch))
        self.tile_pitch = self.blocks.vectors * self.isa.lanes
        shape, order, planes = (filter_.planes, conv.outputs, conv.inputs), (0, 2, 1), filter_.planes
        panels = Panels(conv.weight, shape, order, planes, conv.inputs, conv.outputs, 1, self.blocks.channel_runs)
        self.packing = FilteredPanels(panels, filter_)

    @property
    def steps(self) -> Size:
        """The number of vectors of a row of tiles in the transforms."""
        return -(-self.wide // self.narrow)

    @property
    def plane(self) -> Size:
        """The distance in elements between planes of transformed inputs.

        The last vector of a channel may exceed it: the next channel is written later, but the next plane is not.
        """
        return emit.spread(self.conv.inputs * self.tile_pitch + (0 if is_number(self.tile_pitch) else self.narrow))

    def _start(self, step: tirx.Expr) -> tirx.Expr:
        """The start of a vector of a row of tiles; a last one that would exceed the end starts earlier."""
        start = overlapping(step * index(self.narrow), self.wide, self.narrow)
        return start if is_number(self.wide) else emit.bound(tirx.max(index(0), start))

    def transform(self, arguments: Arguments, inputs: tirx.Buffer, image: tirx.Expr, first: tirx.Expr) -> None:
        """Transform the inputs of a block whose first row of outputs is `first`."""
        step_size, part = self.filter.outputs, self.across.extent
        lines, line = step_size * self.blocks.tall + 2, part * step_size * self.apart
        copied = emit.scratch((lines + 1) * line + (step_size + 1) * self.copying.lanes)
        # Vectors of narrow rows of tiles read beyond the copy.
        emit.put(copied, emit.zeros(self.narrow), index(lines * line), self.narrow)
        with emit.loop(self.conv.inputs) as channel:
            self._clear_end(inputs, channel)
            self._copy_rows(arguments, image * index(self.conv.inputs) + channel, copied, first, lines)
            with emit.loop(self.apart) as column, emit.loop(self.blocks.tall) as down, emit.loop(self.steps) as step:
                tile = self._start(step)
                number = column * index(self.blocks.tall) + down
                to = channel * index(self.tile_pitch) + number * index(self.wide) + tile
                source = down * index(step_size * line) + column * index(part) + tile
                self._input_tile(copied, source, inputs, to)

    def _clear_end(self, inputs: tirx.Buffer, channel: tirx.Expr) -> None:
        """Clear the last vector of a channel of each plane, if the transforms leave a part of it out.

        Its products are dropped, but may be slow: a denormal factor takes Intel's CPUs more than 100 cycles.
        """
        lines, lanes = self.blocks.tall * self.apart, self.isa.lanes
        left_out = self.tile_pitch - larger(lines * self.wide, (lines - 1) * self.wide + self.narrow)
        if is_number(left_out) and not left_out:
            return
        with emit.loop(self.filter.planes) as plane:
            end = plane * index(self.plane) + channel * index(self.tile_pitch) + index(self.tile_pitch - lanes)
            emit.put(inputs, emit.zeros(lanes), end, lanes)

    def _copy_rows(
        self, arguments: Arguments, channel: tirx.Expr, copied: tirx.Buffer, first: tirx.Expr, lines: Size
    ) -> None:
        """Copy the rows that outputs from row `first` read of a channel, or zeros if it is in the padding."""
        conv, part, flat = self.conv, self.across.extent, arguments.flat(self.conv.data)
        plane, there = conv.plane_of(channel)
        plane = plane if there is None else emit.bound(plane)
        with emit.loop(lines) as line:
            row = first + line * index(self.pitch) - index(conv.rows.before)
            start = (plane * index(conv.rows.size) + row) * index(conv.columns.size)
            row = row if there is None else emit.bound(tirx.Select(there, row, index(-1)))
            to, columns = line * index(len(self.across.phases) * part), CopiedRow(self.across, part, part)
            copy_row(flat, start, copied, to, columns, (row, conv.rows.size), self.copying)

    def _input_tile(self, copied: tirx.Buffer, source: tirx.Expr, inputs: tirx.Buffer, to: tirx.Expr) -> None:
        """Transform a vector of tiles of one channel."""
        part, lanes, step = self.across.extent, self.narrow, self.filter.outputs

        def loaded(row: int, column: int) -> tirx.Expr:
            place = (step * row + column % step) * self.apart * part + column // step
            return emit.vector(copied, source + index(place), lanes)

        for row, values in enumerate(transformed(self.filter.factors, loaded, lanes)):
            for column, value in enumerate(values):
                emit.put(inputs, value, to + index((row * self.filter.inputs + column) * self.plane), lanes)
