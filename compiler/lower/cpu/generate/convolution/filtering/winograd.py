"""Generation of 3×3 convolutions by Winograd's minimal filtering F(m×m, 3×3) in NCHW.

For a tile of four outputs, m = 2, it needs 16 products instead of 36; for one of 16, m = 4, 36 instead of 144.
Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, https://arxiv.org/abs/1509.09308.

A block is some rows of tiles. Its inputs, (m + 2)×(m + 2) of the padded image for each tile, are transformed to scratch
[plane][channel][tile]. For some output channels at a time, a matrix product for each plane gives
[plane][channel][tile], which are transformed to rows of outputs and stored with the epilogue. Vectors are along tiles:
rows are split by the remainder of the column by m when they are copied, and interleaved again when outputs are stored.
A block of a dilated convolution has rows of one remainder by the dilation, and all columns (see model.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import LARGE, SMALL, Filter, FilteredPanels
from heterocc.compiler.lower.cpu.generate.convolution.filtering.model import (
    Blocks,
    choose_blocks,
    filtering_cycles,
    is_fixed,
)
from heterocc.compiler.lower.cpu.generate.convolution.filtering.transforms import transformed
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window, find_planes
from heterocc.compiler.lower.cpu.generate.convolution.padded import CopiedRow, copy_row
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step, Walk
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, store_vectors
from heterocc.compiler.lower.cpu.generate.fetch import Weight, fetching
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Place, index, overlapping
from heterocc.compiler.lower.cpu.generate.products.few_columns import FEW, few_sums
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import Dim, Size, as_number, is_number, larger, smaller, typical


def propose_winograd(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a 3x3 convolution by minimal filtering, also in the large tiles that fast arithmetic allows."""
    conv = find_planes(kernel)
    if conv is None or not is_number(kernel.extents[conv.loops[1]]) or not can_store(kernel) or not can_filter(conv):
        return
    if conv.outputs < isa.core.filtered_channels:
        return
    for filter_ in (SMALL, LARGE) if isa.fast_math and is_fixed(conv) else (SMALL,):
        writer = partial(_Writer, kernel, conv, filter_=filter_)
        cycles = filtering_cycles(conv, isa, filter_)
        yield Candidate("filtering", cycles, writer, f"of {filter_.outputs}x{filter_.outputs}")


def can_filter(conv: Convolution) -> bool:
    """Whether a convolution has 3×3 taps and one group; one of a map of any size has the taps side by side."""
    windows = (conv.rows, conv.columns)
    dilated = max(w.dilation for w in windows) > 1
    return (
        conv.groups == 1 and all((w.taps, w.stride) == (3, 1) for w in windows) and not (dilated and not is_fixed(conv))
    )


class _Writer:
    """A generator of a convolution: blocks of tiles are transformed, multiplied and transformed back.

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
        self.packings = (self.packing,)

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

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body: threads share blocks and parts of their channels."""
        conv, parts = self.conv, self.blocks.parts
        tiles = sum(r.count for r in self.blocks.channel_runs)
        tasks = conv.batch * self.blocks.count
        with emit.shared_loop(tasks * parts, conv.work) as task:
            number, part = emit.unpacked(task, (tasks, parts))
            image, first = self._block(number)
            inputs = emit.scratch(self.filter.planes * self.plane + self.tile_pitch + self.narrow)
            self.transform(arguments, inputs, image, first)
            # Vectors of rows of tiles may read beyond the end of the products.
            products = emit.scratch(self.filter.planes * self._product_plane() + self.narrow)
            rows = emit.scratch(self.filter.outputs * (self.blocks.tall * self.row_pitch + 2 * self.narrow))
            with emit.share_loop(part, parts, tiles) as tile:
                channel, count = self._products_of_tile(arguments, inputs, products, tile)
                self._outputs(arguments, products, rows, channel, count, image, first)

    def _block(self, task: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """A block's image and first row of outputs. The last one may cover rows beyond the map, and not store them."""
        image, block = emit.unpacked(task, (self.conv.batch, self.blocks.count))
        number, remainder = emit.unpacked(block, (self.blocks.count // self.pitch, self.pitch))
        return image, emit.bound(number * index(self.rows * self.pitch) + remainder)

    def _product_plane(self) -> Size:
        return emit.spread(max(r.size for r in self.blocks.channel_runs) * self.tile_pitch)

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
            copy_row(flat, start, copied, to, columns, row, conv.rows.size, self.copying)

    def _input_tile(self, copied: tirx.Buffer, source: tirx.Expr, inputs: tirx.Buffer, to: tirx.Expr) -> None:
        """Transform a vector of tiles of one channel."""
        part, lanes, step = self.across.extent, self.narrow, self.filter.outputs

        def loaded(row: int, column: int) -> tirx.Expr:
            place = (step * row + column % step) * self.apart * part + column // step
            return emit.vector(copied, source + index(place), lanes)

        for row, values in enumerate(transformed(self.filter.factors, loaded, lanes)):
            for column, value in enumerate(values):
                emit.put(inputs, value, to + index((row * self.filter.inputs + column) * self.plane), lanes)

    def _products_of_tile(
        self, arguments: Arguments, inputs: tirx.Buffer, products: tirx.Buffer, tile: tirx.Expr
    ) -> tuple[tirx.Expr, Size]:
        """The products of a tile of output channels; returns the first channel and their number."""
        tiles = self.blocks.channel_runs
        emit.either_run(
            tiles, tile, lambda run: self._products(arguments, inputs, products, run, emit.start_of(run, tile))
        )
        size: Size = tiles[0].size
        start = emit.start_of(tiles[0], tile)
        if len(tiles) == 2:  # the code of outputs is long: tiles of both sizes have it in common
            later = tile >= index(tiles[1].first)
            size = Dim(tiles[0].size, emit.bound(tirx.Select(later, index(tiles[1].size), index(size))))
            start = emit.bound(tirx.Select(later, emit.start_of(tiles[1], tile), start))
        return start, size

    def _products(
        self, arguments: Arguments, inputs: tirx.Buffer, products: tirx.Buffer, run: Run, first: tirx.Expr
    ) -> None:
        """The products of every plane."""
        lanes, terms = self.isa.lanes, self.conv.inputs
        weights = arguments.flat(self.kernel.function.params[self.conv.weight])
        planes = self.filter.planes
        with emit.loop(planes) as plane:
            base = first * index(planes * terms) + plane * index(run.size * terms)
            to = plane * index(self._product_plane())

            def weight(term: tirx.Expr, base: tirx.Expr = base) -> tuple[tirx.Buffer, tirx.Expr]:
                return weights, base + term * index(run.size)

            def walk(count: Size, step: Step, weight: Weight = weight) -> None:
                far = 4 * self.packing.size > self.isa.core.far_bytes
                emit.in_turn(count, fetching(step, run.size, weight) if far else step)

            def in_vectors(base: tirx.Expr = base, plane: tirx.Expr = plane, to: tirx.Expr = to) -> None:
                for vectors in self.blocks.vector_runs:
                    with emit.loop(vectors.count) as number:
                        start = (index(vectors.start) + number * index(vectors.size)) * index(lanes)
                        begin = plane * index(self.plane) + start

                        def broadcast(row: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
                            return weights[base + term * index(run.size) + row]

                        def loaded(column: int, term: tirx.Expr, begin: tirx.Expr = begin) -> tirx.Expr:
                            place = begin + term * index(self.tile_pitch) + index(column * lanes)
                            return emit.vector(inputs, place, lanes)

                        # Of sizes that are known only at run time, the first run may be empty.
                        first_read = vectors is self.blocks.vector_runs[0] or not is_number(vectors.start)
                        each = walk if first_read else emit.in_turn
                        sums = emit.product_tile(run.size, vectors.size, terms, self.isa, broadcast, loaded, each)
                        with emit.loop(run.size, "unroll") as row:
                            for column, buffer in enumerate(sums):
                                place = to + start + row * index(self.tile_pitch) + index(column * lanes)
                                emit.put(products, emit.vector(buffer, row * index(lanes), lanes), place, lanes)

            def of_few(
                walk: Walk = walk, weight: Weight = weight, plane: tirx.Expr = plane, to: tirx.Expr = to
            ) -> None:
                def number(tile: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
                    return inputs[plane * index(self.plane) + term * index(self.tile_pitch) + tile]

                sums = few_sums(run.size, FEW, terms, self.isa, number, [weight], walk)
                with emit.loop(run.size) as row:
                    place = emit.bound(to + row * index(self.tile_pitch))
                    emit.put(products, emit.zeros(lanes), place, lanes)
                    emit.put(products, emit.vector(sums, row * index(FEW), FEW), place, FEW)

            if is_number(self.tile_pitch) or not self.isa.masks or run.size > lanes:
                in_vectors()
            else:
                emit.either(index(self.blocks.tall * self.wide) <= index(FEW), of_few, in_vectors)
            if not is_number(self.tile_pitch):
                # The last vector of a row of tiles may read beyond the products.
                end = plane * index(self._product_plane()) + index(run.size * self.tile_pitch)
                emit.put(products, emit.zeros(self.narrow), end, self.narrow)

    def _outputs(
        self,
        arguments: Arguments,
        products: tirx.Buffer,
        image_rows: tirx.Buffer,
        channel: tirx.Expr,
        count: Size,
        image: tirx.Expr,
        first: tirx.Expr,
    ) -> None:
        """Transform the products of `count` channels to rows of outputs, and store these."""
        width, places = self.conv.columns.places, self.conv.rows.places
        _, channels, *pixels = self.conv.loops
        groups = [(channels,), tuple(n for n in pixels if n is not None)]
        axes = [self.kernel.axis(loops) for loops in groups]
        images = self.kernel.place(self.conv.image_loops(image))
        tall = self.filter.outputs
        inside = tirx.floordiv(index(places - 1) - first, index(self.pitch)) + index(1)
        rows = Dim(typical(self.rows), emit.bound(tirx.max(index(0), tirx.min(index(self.rows), inside))))
        with emit.loop(count) as row:
            with emit.loop(self.apart) as remainder, emit.loop(self.blocks.tall) as down, emit.loop(self.steps) as step:
                # From the last vector to the first: the last one may write numbers of the next row.
                tile = self._start(index(self.steps - 1) - step)
                number = remainder * index(self.blocks.tall) + down
                source = row * index(self.tile_pitch) + number * index(self.wide) + tile
                to = down * index(tall * self.row_pitch) + tile * index(tall * self.apart) + remainder
                self._output_tile(products, source, image_rows, to)

            def store(line: tirx.Expr, length: Size) -> None:
                start = (first + line * index(self.pitch)) * index(width)

                def place(number: tirx.Expr) -> Place:
                    return [*images, *zip(axes, (channel + row, start + number), strict=True)]

                def total(number: tirx.Expr) -> tirx.Expr:
                    return image_rows[line * index(self.row_pitch) + number]

                store_vectors(self.kernel, arguments, total, place, length, self.isa.lanes)

            if self.pitch > 1 or self.apart > 1:
                with emit.loop(rows) as line:
                    store(line, width)
            elif not is_number(self.blocks.count):
                store(index(0), rows * width)
            else:
                last = as_number(places - (self.blocks.count - 1) * self.rows)
                of_last = first + index(self.rows) > index(places)
                some, every = (partial(store, index(0), n * width) for n in (last, self.rows))
                emit.either(of_last, some, every) if last < as_number(self.rows) else every()

    def _output_tile(self, products: tirx.Buffer, source: tirx.Expr, rows: tirx.Buffer, to: tirx.Expr) -> None:
        """Transform a vector of tiles of one channel to rows, each of which follows the one before."""
        lanes, plane, side = self.narrow, self._product_plane(), self.filter.inputs

        def loaded(row: int, column: int) -> tirx.Expr:
            return emit.vector(products, source + index((row * side + column) * plane), lanes)

        order = [number * lanes + lane for lane in range(lanes) for number in range(self.filter.outputs)]
        for row, values in enumerate(transformed(self.filter.sums, loaded, lanes)):
            place = build.ramp(to + index(row * self.row_pitch), index(self.apart), len(order))
            build.buffer_store(rows, tirx.Shuffle(values, order), [place])
