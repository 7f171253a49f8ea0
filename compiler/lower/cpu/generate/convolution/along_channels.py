"""Convolution in NCHW with vectors along output channels: a tile is some pixels of a row times some vectors.

The input is read in one of two ways. In place, a row of outputs is divided where the taps that lie inside the input
change. Within a part all outputs have the same taps, so that no padding is needed, and taps in the padding take no
time: this suits dilated kernels. Otherwise rows are copied with padding, as for vectors along pixels, which rows of few
pixels fill badly.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.choices import close
from heterocc.compiler.lower.cpu.contraction import best_tile
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.copied_rows import CopiedRows
from heterocc.compiler.lower.cpu.generate.convolution.direct import (
    MOST_UNROLLED,
    DirectWriter,
    best_writer,
    is_left_to_schedule,
)
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window, find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.pixel_tiles import (
    STORE_CYCLES,
    Factor,
    Part,
    PixelTiles,
    Term,
    Walk,
    parts_of,
)
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import LATENCY
from heterocc.compiler.lower.cpu.sizes import is_number

PAYS = 0.95
"""The share of the scheduled kernel's modelled time from which this form is used: its few tiles divide badly among
threads."""

DIRECT_TIME = 1.07
"""The time of the form with vectors along pixels over its modelled one, which leaves out stores."""

FEWEST_LANES = 8
"""Vectors of fewer lanes are nearly filled by pixels."""

WEIGHTS_CYCLES = 1.0
"""The time in cycles that a vector of weights adds to a step of the scheduled kernel."""

LOOP_CYCLES = 1.5
"""The time in cycles that the loops over taps add to a step."""


def generate_along_channels(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as a convolution with vectors along channels.

    None if it is not one, has sizes that are known only at run time, or is faster in another form by the models.
    """
    if isa.lanes < FEWEST_LANES or not all(map(is_number, kernel.extents)):
        return None
    found = find_convolution(kernel)
    if found is None or not can_store(kernel) or found.outputs % isa.lanes or found.taps == 1:
        return None
    other = best_writer(DirectWriter, kernel, found, isa.decided)
    left = is_left_to_schedule(other, isa)
    limit = PAYS * _scheduled_cycles(found, isa) if left else DIRECT_TIME * other.cycles
    kinds: dict[str, type[InPlaceWriter | CopiedWriter]] = {"in place": InPlaceWriter}
    if max(len(found.rows.phases) * len(found.columns.phases), found.columns.taps) <= MOST_UNROLLED:
        kinds["copied"] = CopiedWriter
    costs = [(limit, "none"), *((kind(kernel, found, isa.decided).cycles, name) for name, kind in kinds.items())]
    name = isa.choose("vectors along channels", close(costs))
    if name == "none":
        return None
    writer = kinds[name](kernel, found, isa)
    return emit.written(kernel, {found.weight: writer.packing.size}, writer.write), (writer.packing,)


def _scheduled_cycles(found: Convolution, isa: Isa) -> float:
    """Modelled time of the scheduled kernel, whose weights come from a second-level cache."""
    tile = best_tile(found.columns.places, found.outputs, isa.lanes)
    assert tile is not None
    tall, wide = tile.rows, tile.blocks
    cycles = max(tall * wide / 2, (tall + wide) / 2, LATENCY) + WEIGHTS_CYCLES * wide
    return found.work / (tall * tile.channels) * cycles


class InPlaceWriter(PixelTiles):
    """A generator that reads the input in place, and only taps inside it."""

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa) -> None:
        super().__init__(kernel, found, isa, parts_of(found.columns), LOOP_CYCLES)

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        found = self.found
        taps = sum((p.end - p.start) * (p.last - p.first) for p in parts_of(found.rows))
        stored = found.rows.places * found.columns.places * found.outputs * STORE_CYCLES
        return found.batch * found.groups * (taps * found.inputs * self.row_cycles + stored)

    def _tasks(self, tiles: int) -> int:
        return self.found.batch * self.found.groups * tiles * self.found.rows.places

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found = self.found
        tiles = sum(r.count for r in self.vector_runs)
        images = found.batch * found.groups
        # Tiles of channels first: a task then reads fewer weights.
        parts = emit.shares(found.work, images, tiles)
        chunks = emit.shares(found.work, images * parts, found.rows.places)
        with emit.shared_loop(images * chunks * parts, found.work) as task:
            image, group, chunk, part = emit.unpacked(task, (found.batch, found.groups, chunks, parts))
            buffers = self._buffers()
            with emit.share_loop(part, parts, tiles) as tile, emit.share_loop(chunk, chunks, found.rows.places) as row:

                def source(start: tirx.Expr) -> tuple[Walk, Factor]:
                    return self._source(arguments, (image, group, row), start)

                emit.either_run(
                    self.vector_runs,
                    tile,
                    lambda run: self._row(arguments, buffers, run, tile, (image, group, row), source),
                )

    def _source(
        self, arguments: Arguments, where: tuple[tirx.Expr, tirx.Expr, tirx.Expr], start: tirx.Expr
    ) -> tuple[Walk, Factor]:
        """The walk over the terms of pixels from `start` of a row, and their inputs."""
        found = self.found
        rows, columns = found.rows, found.columns
        image, group, row = where
        flat = arguments.flat(found.data)
        channel = (image * index(found.groups) + group) * index(found.inputs)
        top = row * index(rows.stride) - index(rows.before)
        left = start * index(columns.stride) - index(columns.before)
        down, across = _inside(rows, top), _inside(columns, left)

        def walk(step: Step) -> None:
            with emit.loop(found.inputs) as input_, _between(rows, down) as tap_row, _between(columns, across) as tap:
                step((input_, tap_row, tap), 0)

        def factor(pixel: tirx.Expr, term: Term) -> tirx.Expr:
            input_, tap_row, tap = term
            line = (channel + input_) * index(rows.size) + top + tap_row * index(rows.dilation)
            place = line * index(columns.size) + left + tap * index(columns.dilation)
            return flat[place + pixel * index(columns.stride)]

        return walk, factor


class CopiedWriter(PixelTiles):
    """A generator that copies rows with padding for some rows of outputs."""

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa) -> None:
        whole = (Part(0, found.columns.places, 0, found.columns.taps),)
        self._rows = _Rows(kernel, found, isa)
        super().__init__(kernel, found, isa, whole, 0.0)

    def _held(self, tall: int) -> int:
        """Registers for inputs: LLVM keeps those that several taps of a row read, and computes with what is left."""
        return tall + 1 if self.found.columns.taps > 1 else super()._held(tall)

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        found = self.found
        stored = found.rows.places * found.columns.places * found.outputs * STORE_CYCLES
        sums = found.rows.places * found.rows.taps * found.inputs * self.row_cycles
        return found.batch * found.groups * (sums + stored + self._rows.all_copied)

    def _tasks(self, tiles: int) -> int:
        return self._rows.tasks(tiles)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        tiles = sum(r.count for r in self.vector_runs)
        self._rows.write_chunks(arguments, tiles, lambda *chunk: self._chunk(arguments, tiles, *chunk))

    def _chunk(
        self,
        arguments: Arguments,
        tiles: int,
        copied: tirx.Buffer,
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
        part: tuple[tirx.Expr, int],
    ) -> None:
        image, group, top = where
        buffers = self._buffers()
        with emit.share_loop(*part, tiles) as tile, emit.loop(self._rows.rows) as line:

            def source(start: tirx.Expr) -> tuple[Walk, Factor]:
                return self._source(copied, line, start)

            emit.either_run(
                self.vector_runs,
                tile,
                lambda run: self._row(arguments, buffers, run, tile, (image, group, top + line), source),
            )

    def _source(self, copied: tirx.Buffer, line: tirx.Expr, start: tirx.Expr) -> tuple[Walk, Factor]:
        """The walk over the terms of pixels from `start` of a line of the chunk, and their copied inputs."""
        found = self.found

        def walk(step: Step) -> None:
            with emit.loop(found.inputs) as input_, emit.loop(found.rows.taps) as tap_row:
                for tap in range(found.columns.taps):
                    step((input_, tap_row, index(tap)), 0)

        def factor(pixel: tirx.Expr, term: Term) -> tirx.Expr:
            input_, tap_row, tap = term
            return copied[self._rows.place(input_, tap_row, int(tap), line) + start + pixel]

        return walk, factor


def _inside(window: Window, begin: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr] | None:
    """The first tap inside the input and the one after the last, if tap 0 is at `begin`; None if all are."""
    if len(parts := parts_of(window)) == 1 and (parts[0].first, parts[0].last) == (0, window.taps):
        return None
    apart = index(window.dilation)
    first = tirx.max(index(0), -tirx.floordiv(begin, apart))
    last = tirx.min(index(window.taps), tirx.floordiv(index(window.size - 1) - begin, apart) + index(1))
    return emit.bound(first), emit.bound(last)


def _between(window: Window, inside: tuple[tirx.Expr, tirx.Expr] | None) -> AbstractContextManager[tirx.Expr]:
    return emit.loop(window.taps) if inside is None else build.serial(*inside)


class _Rows(CopiedRows):
    """The copies of rows, as those for vectors along pixels without the lanes that rows of these leave empty."""

    def _vectors(self, rows: int) -> int:
        return -(-rows * self.found.columns.places // self.isa.lanes)

    def _computed(self, rows: int) -> float:
        return rows * self.found.columns.places / self.isa.lanes
