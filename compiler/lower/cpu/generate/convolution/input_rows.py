"""Input rows for some rows of a convolution's outputs, mostly copies with padding, and how many rows a copy serves.

Strides are separated by the remainders of row and column. All copied rows have one pitch, so that the outputs of
several rows form one line, as do their inputs at any tap: a vector may extend over several rows, and narrow maps fill
vectors as wide ones do. A single row of any length, of a convolution of one dimension, is computed in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window
from heterocc.compiler.lower.cpu.generate.convolution.padded import (
    CopiedRow,
    copy_row,
    takes_vectors,
)
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.fetch import LINE, fetch_far
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import NUMBERS
from heterocc.compiler.lower.cpu.sizes import Dim, Size, as_number, exceeds, is_number, is_one, larger, smaller, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of

CHANNELS_A_PART = 32
"""The smallest number of output channels for which rows are copied."""

CHANNELS_OF_FEW = 8
"""The same of an output that is one chunk of rows, all of which would otherwise be computed by one thread."""

COPYING = 0.06
"""The limit on the time of all copies of the same rows, one for each part of the channels, in that of their sums."""

CHANNELS_OF_A_TILE = 8
"""The usual number of output channels of a tile."""

SIZED_ROWS = 8
"""The limit on rows of a chunk if the number of rows is known only at run time; maps of fewer rows are smaller."""

LINES_A_COPY = 4
"""Rows of such a chunk for each row that the next one copies again."""

FEW_ROWS = 4
"""Rows that such a chunk has even if their copies are larger than what is to stay in a cache."""

PIECE, LONG_PIECE = 6, 16
"""The least and the most vectors of a piece of a row, of which the least are two tiles: for each piece all weights are
read again. With a limit, layers of many numbers of channels have pieces of one length, and common code."""

MOST_IN_ROW = 16
"""The limit on unrolled taps of a row: the code of more would not stay in the first-level cache."""

MOST_IN_STRIDES = 64
"""The limit on unrolled taps of a row by a stride: LLVM takes minutes for hundreds."""


class Chunk(NamedTuple):
    """Rows of outputs of a group of an image from row `top` on, and the buffer with the rows of their inputs."""

    inputs: tirx.Buffer
    image: tirx.Expr
    group: tirx.Expr
    top: tirx.Expr


def is_one_chunk(conv: Convolution, rows: int) -> bool:
    """Whether all outputs are one chunk of `rows` rows."""
    places = conv.rows.places
    return is_number(places) and is_number(conv.batch) and conv.batch * conv.groups == 1 and places <= rows


def unrolled_taps(columns: Window) -> int:
    """The taps of a row that are written one by one: those by a stride are in the copies of its phases."""
    if columns.stride > 1 and (columns.dilation > 1 or columns.taps <= MOST_IN_STRIDES):
        return columns.taps
    return MOST_IN_ROW if columns.stride > MOST_IN_ROW else -(-MOST_IN_ROW // columns.stride) * columns.stride


class InputRows:
    """A generator of a convolution's loops over chunks of output rows, with the input rows of each one.

    They are copied, or read where they are if they have no padding and strides: `in_place` is the number of output rows
    of a chunk then, else 0. Columns of outputs that exist are `apart`.
    """

    def __init__(self, kernel: Kernel, given: Convolution, isa: Isa, apart: int = 1, in_place: int = 0) -> None:
        self.copying = isa = isa.of(kernel.dtype)
        self.kernel, self.given, self.apart, self.in_place = kernel, given, apart, in_place
        self.begin = self.piece_start = index(0)
        self.conv, self.pieces = self._in_pieces(isa)
        conv = self.conv
        self.kind = NUMBERS[kernel.dtype]
        self.pitch = conv.columns.size if in_place else conv.columns.extent
        self.isa = isa.narrowed(conv.rows.places * self.pitch)
        # Chunks of few rows suit images of all sizes; of one row, all.
        sized = SIZED_ROWS if isa.lanes > 1 else 1
        most = conv.rows.places if is_number(conv.rows.places) else sized
        self.usual_rows = in_place or self._best_rows(most)
        self.chunks = self._chunks()
        places = conv.rows.places
        self._take_rows(min(self.usual_rows, places) if is_number(places) else -(-places // self.chunks))
        self.plane = conv.rows.size * self.pitch if in_place else emit.spread(self.lines * self.pitch + self._beyond)

    @property
    def fixed(self) -> bool:
        """Whether the number of rows of outputs is known when code is generated."""
        return is_number(self.conv.rows.places)

    def _in_pieces(self, isa: Isa) -> tuple[Convolution, Size]:
        """The convolution, with the only row of a map in pieces of whole vectors as images, and the pieces of a row.

        All tiles of channels read the copy of one, from a near cache. Of 5,000 places of 128 channels by a stride, each
        tile read 10 MB.
        """
        given, rows, columns = self.given, self.given.rows, self.given.columns
        one = is_number(rows.places) and rows.places == rows.taps == 1
        if not one or is_number(columns.places) or not takes_vectors(columns.stride, isa, self.kernel.dtype):
            return given, 1
        held = isa.core.copy_bytes // (4 * given.inputs * len(columns.phases) * isa.lanes)
        vectors = -(-columns.places // isa.lanes)
        pieces = -(-vectors // max(PIECE, min(held, LONG_PIECE)))
        piece = replace(columns, places=isa.lanes * -(-vectors // pieces))
        return replace(given, batch=given.batch * pieces, columns=piece), pieces

    def take_piece(self, number: tirx.Expr) -> tirx.Expr:
        """Take a piece of a row, by its number among those of all images, and its own vectors; return the image."""
        if is_number(self.pieces):
            return number
        row, piece = self.given.columns, self.conv.columns
        image, number = emit.unpacked(number, (self.given.batch, self.pieces))
        self.piece_start = emit.bound(number * index(piece.places))
        before = index(row.before) - self.piece_start * index(row.stride)
        left = emit.bound(tirx.min(index(piece.places), index(row.places) - self.piece_start))
        piece = replace(piece, before=Dim(typical(row.before), before), places=Dim(typical(piece.places), left))
        self.conv = replace(self.conv, columns=piece)
        self._take_rows(self.rows)
        return image

    def _take_rows(self, rows: Size) -> None:
        """Take so many rows of outputs for a chunk."""
        self.rows = rows
        self.vectors = self._vectors(rows)
        self.lines = rows + self.conv.rows.reach // self.conv.rows.stride

    def _chunks(self) -> Size:
        """The number of chunks.

        Of a map of any height, chunks have more rows if it is narrow, to fill tiles, but their copies stay in a
        second-level cache.
        """
        rows = self.conv.rows
        if is_number(rows.places):
            return -(-rows.places // min(self.usual_rows, rows.places))
        again = rows.reach // rows.stride
        many = larger(self.usual_rows * typical(self.pitch) // self.pitch, max(self.usual_rows, LINES_A_COPY * again))
        held = 2 * self.isa.core.copy_bytes // (4 * self.conv.inputs * self._phases) // self.pitch - again
        return -(-rows.places // smaller(many, larger(held, min(self.usual_rows, FEW_ROWS))))

    @property
    def _beyond(self) -> int:
        """The numbers after a plane that its rows overwrite, or that are cleared because vectors read them."""
        in_vectors = takes_vectors(self.conv.columns.stride, self.copying, self.kernel.dtype)
        return self.copying.lanes if in_vectors or self._reads_beyond else 0

    @property
    def _reads_beyond(self) -> bool:
        """Whether vectors read beyond a plane's rows, by fewer numbers than a vector has."""
        furthest = (self.conv.columns.taps - 1) * self.conv.columns.dilation // self.conv.columns.stride
        beyond = self.vectors * self.isa.lanes + furthest - self.rows * self.pitch
        return not is_number(beyond) or beyond > 0

    def _best_rows(self, most: int) -> int:
        """The number of rows of outputs, up to `most`, of a chunk."""
        costs = [(self._cycles(rows), rows) for rows in range(1, most + 1)]
        return min(costs)[1]

    def _vectors(self, rows: Size) -> Size:
        """The number of vectors of a line of `rows` rows of outputs, with the gaps between them."""
        return -(-((rows - 1) * self.pitch + self.conv.columns.places) // self.isa.lanes)

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        return typical(self.conv.batch) * self.conv.groups * self._cycles(typical(self.rows))

    @property
    def all_copied(self) -> float:
        """Modelled time of the copies of all rows of an image's group."""
        return typical(self.chunks) * self._copy_cycles(typical(self.rows))

    def _cycles(self, rows: int) -> float:
        """Modelled time of the convolution in chunks of `rows` rows: multiply-adds, and copying."""
        conv = self.conv
        copy, sums = self._copy_cycles(rows), self._sum_cycles(rows)
        parts = self._most_parts(rows)
        chunks = -(-typical(conv.rows.places) // rows)
        if self.apart > 1:
            sums *= chunks * rows / typical(conv.rows.places)  # the last chunk computes rows of another again
        again = self.again_cycles(chunks)
        total = chunks * (sums + parts * copy) + again
        if typical(conv.work) < emit.PARALLEL_WORK:
            return chunks * (sums + copy) + again
        return total * emit.sharing(conv.work, typical(conv.batch) * conv.groups * parts * chunks)

    def again_cycles(self, chunks: int) -> float:
        """Modelled time of reading weights again for every chunk of rows but the first, if a near cache lacks them."""
        conv = self.conv
        weights = conv.outputs * conv.inputs * conv.taps
        if self.in_place or 4 * weights <= self.isa.core.far_bytes:
            return 0.0
        return (chunks - 1) * weights / LINE * self.isa.core.line

    def _copy_cycles(self, rows: int) -> float:
        """Modelled time of one copy of the rows for `rows` rows of outputs."""
        lines, pitch = self._copied_lines(rows), typical(self.pitch)
        stride, lanes = self.conv.columns.stride, self.isa.lanes
        if self.in_place:
            return 0.0
        if stride <= 2 or (takes_vectors(stride, self.isa) and pitch >= lanes):
            return lines * (max(stride, 2) * pitch / lanes + 8)
        return self.isa.core.copied_number * lines * pitch

    def _sum_cycles(self, rows: int) -> float:
        """Modelled time of the sums of `rows` rows of outputs; rows beyond a cache slow them down.

        If the inputs of one row exceed it already, each tile of channels reads all from a farther one.
        """
        conv = self.conv
        sums = typical(self._vectors(rows)) * conv.inputs * conv.taps * conv.outputs / (2 * self.apart)
        numbers = self._copied_lines(rows) * typical(self.pitch)
        if 4 * self._copied_lines(1) * typical(self.pitch) > self.isa.core.copy_bytes:
            return sums + -(-conv.outputs // CHANNELS_OF_A_TILE) * numbers / LINE * self.isa.core.line
        return sums * (2.0 if 4 * numbers > self.isa.core.copy_bytes else 1.0)

    def _copied_lines(self, rows: int) -> int:
        conv = self.conv
        return (rows + conv.rows.reach // conv.rows.stride) * conv.inputs * self._phases

    def _most_parts(self, rows: int) -> int:
        """The number of parts of the output channels, each with its own copy of the rows."""
        pays = int(COPYING * self._sum_cycles(rows) / self._copy_cycles(rows))
        alone = is_one_chunk(self.given, rows)
        return max(1, min(self.conv.outputs // (CHANNELS_OF_FEW if alone else CHANNELS_A_PART), pays))

    def parts_of(self, tiles: Size) -> Size:
        """The parts of the `tiles` of channels of a chunk."""
        return smaller(emit.shares(self.conv.work, self._tasks, tiles), self._most_parts(self.usual_rows))

    @property
    def _tasks(self) -> Size:
        """The chunks of all images."""
        return self.conv.batch * self.conv.groups * self.chunks

    def write_chunks(self, arguments: Arguments, parts: Size, body: Callable[[Chunk, emit.Part], None]) -> None:
        """Write the loop over chunks of rows and parts of the channels, with the input rows of each one."""
        conv = self.conv
        with emit.shared_loop(self._tasks * parts, conv.work) as task:
            image, group, chunk, part = emit.unpacked(task, (conv.batch, conv.groups, self.chunks, parts))
            rows = arguments.flat(conv.data) if self.in_place else emit.scratch(self.length, self.kind.sums)
            image = self.take_piece(image)
            if self.fixed:
                top = chunk * index(self.rows)
                if exceeds(conv.rows.places, self.rows):
                    top = tirx.min(top, index(conv.rows.places - self.rows))
            else:
                # All have equally many rows, or one less: none is computed twice.
                top, end = (emit.bound(place) for place in emit.share(chunk, self.chunks, conv.rows.places))
                self._take_rows(Dim(typical(self.rows), emit.bound(end - top)))
            number = image * index(conv.groups) + group
            if self.in_place:
                self.begin = emit.bound(number * index(conv.inputs * self.plane) + top * index(self.pitch))
            else:
                self.copy(arguments, rows, number, top)
            body(Chunk(rows, image, group, top), emit.Part(part, parts))

    @property
    def length(self) -> Size:
        """The numbers of a copy, with those after it that vectors may read."""
        beyond = self._vectors(self.rows) * self.isa.lanes + (self.lines - self.rows) * self.pitch + self.pitch
        return self.conv.inputs * self._phases * self.plane + beyond

    @property
    def _phases(self) -> int:
        """The copies of a channel: one for each remainder of row and column."""
        return len(self.conv.rows.phases) * len(self.conv.columns.phases)

    def copy(self, arguments: Arguments, copied: tirx.Buffer, group: tirx.Expr, top: tirx.Expr) -> None:
        """Copy what the outputs from row `top` read, padded: all channels of a group of an image, phase by phase."""
        rows, columns, flat = self.conv.rows, self.conv.columns, arguments.flat(self.conv.data)
        map_size = rows.size * columns.size
        size = 4 * self.conv.groups * self.conv.inputs * map_size
        with emit.loop(self.conv.inputs) as there:
            channel, exists = self.conv.plane_of(group * index(self.conv.inputs) + there)
            channel = channel if exists is None else emit.bound(channel)
            if self._reads_beyond:
                # Products of what nobody wrote are dropped, but may be slow: denormal numbers take Intel's CPUs 100
                # cycles.
                with emit.loop(self._phases) as plane:
                    end = (there * index(self._phases) + plane) * index(self.plane) + index(self.lines * self.pitch)
                    emit.put(copied, emit.zeros(self.isa.lanes, dtype_of(copied)), end, self.isa.lanes)

            with emit.loop(len(rows.phases)) as phase, emit.loop(self.lines) as line:
                ahead = phase * index(rows.phases.step) - index(rows.before)
                row = (top + line) * index(rows.stride) + ahead
                source = (channel * index(rows.size) + row) * index(columns.size)
                row = row if exists is None else emit.bound(tirx.Select(exists, row, index(-1)))
                if self.conv.taps == 1:  # what more taps read is fetched during the sums
                    fetch_far(flat, source + index(map_size), columns.size, size, self.isa.core.fetched_map)
                planes = (there * index(len(rows.phases)) + phase) * index(len(columns.phases))
                begin = planes * index(self.plane) + line * index(self.pitch)
                to_row = CopiedRow(columns, self.pitch, self.plane)
                copy_row(flat, source, copied, begin, to_row, row, rows.size, self.copying)

    def next_inputs(
        self,
        arguments: Arguments,
        chunk: Chunk,
        tile: emit.Part,
        start: tirx.Expr,
        vectors: int,
    ) -> Callable[[tirx.Expr], None]:
        """A function that prefetches a tile's share of what the next chunk, or piece, copies of an input channel.

        That is of so many vectors from a `start` on. The copies of a chunk wait for a farther cache or memory, which
        the sums before them leave idle.
        """
        conv, (number, tiles) = self.conv, tile
        rows, across = conv.rows, conv.columns
        size = 4 * typical(conv.groups * conv.inputs * rows.size * across.size)
        if conv.is_flattened or conv.taps == 1:
            return lambda _: None
        if not is_number(self.pieces):
            ahead = (self.piece_start + index(across.places)) * index(across.stride)
        elif not is_one(rows.places) and size >= self.isa.core.fetched_bytes:
            ahead = ((chunk.top + index(self.rows)) * index(rows.stride) - index(rows.before)) * index(across.size)
        else:
            return lambda _: None
        flat, each = arguments.flat(conv.data), rows.stride * across.stride
        lines = as_number(-(-vectors * self.isa.lanes * each // (LINE * tiles)))
        map_ = (chunk.image * index(conv.groups) + chunk.group) * index(conv.inputs * rows.size * across.size)
        begin = emit.bound(map_ + ahead + start * index(each) + number * index(lines * LINE))

        def fetch(input_: tirx.Expr) -> None:
            for line in range(lines):
                place = begin + input_ * index(rows.size * across.size) + index(line * LINE)
                emit.prefetch(flat, place)

        return fetch

    def place(self, input_: tirx.Expr, tap_row: tirx.Expr, tap: tirx.Expr, line: tirx.Expr) -> tirx.Expr:
        """The place of what the first output of a line of the chunk reads of an input channel at a tap."""
        plane, steps = input_, []
        for window, number in ((self.conv.rows, tap_row), (self.conv.columns, tap)):
            ahead, stride = number * index(window.dilation), index(window.stride)
            several = len(window.phases) > 1
            phase = tirx.floordiv(tirx.floormod(ahead, stride), index(window.phases.step)) if several else index(0)
            plane = plane * index(len(window.phases)) + phase
            steps.append(tirx.floordiv(ahead, stride) if window.stride > 1 else ahead)
        return self.begin + plane * index(self.plane) + (line + steps[0]) * index(self.pitch) + steps[1]
