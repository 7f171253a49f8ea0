"""1×1 convolutions with vectors along output channels: maps of few pixels fill vectors along pixels badly.

The pixels of a map are one row, so that tiles of pixels need not divide a row of the image. Products
(`generate/product.py`) are the other form: vectors along pixels.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from heterocc.compiler.lower.choices import close
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.direct import DirectWriter, best_writer
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window, find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.pixel_tiles import (
    STORE_CYCLES,
    Factor,
    PixelTiles,
    Term,
    Walk,
)
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import Part
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.fetch import FETCHED_BYTES, LINE
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.products.product import modelled_cycles
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import is_number

PAYS = 1.03
"""The share of the product's modelled time, which leaves out its stores, from which this form is used."""

LEFT_OUT = 1.2
"""What the model of direct convolutions, the other form of those in groups, leaves out: stores, and far weights."""

FEWEST_LANES = 8
"""Vectors of fewer lanes are nearly filled by pixels."""

MOST_PIXELS = 256
"""The limit on pixels of a map: rows of sums are to stay in a first-level cache, and larger maps fill vectors.

A single pixel is a product with a vector, limited by memory.
"""

FEWEST_PIXELS = 48
"""The smallest number of pixels of a row, if there are several: few would be left over in each."""

USUAL_VECTORS = 2
"""The vectors of most tiles."""


def generate_pointwise(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as a 1×1 convolution with vectors along channels.

    None if it is not one, has sizes that are known only at run time, or is faster as a product by the models.
    """
    if isa.lanes < FEWEST_LANES or not all(map(is_number, kernel.extents)):
        return None
    found = find_convolution(kernel)
    if found is None or not can_store(kernel) or not fits(found, isa):
        return None
    limit = modelled_cycles(kernel, isa)
    if limit is None:
        limit = LEFT_OUT * best_writer(DirectWriter, kernel, found, isa.decided).cycles
    costs = [(PAYS * limit, "pixels"), (PointwiseWriter(kernel, found, isa.decided).cycles, "channels")]
    if isa.choose("vectors along", close(costs)) == "pixels":
        return None
    writer = PointwiseWriter(kernel, found, isa)
    return emit.written(kernel, {found.weight: writer.packing.size}, writer.write), (writer.packing,)


def fits(found: Convolution, isa: Isa) -> bool:
    """Whether outputs fill a vector of channels, and are computed from the input at the same pixel."""
    whole = all(w.taps == w.stride == 1 and w.before == 0 and w.places == w.size for w in (found.rows, found.columns))
    return whole and found.outputs >= isa.lanes and 1 < found.rows.places * found.columns.places <= MOST_PIXELS


def _in_rows(found: Convolution, isa: Isa) -> Convolution:
    """The convolution of a map whose pixels are one row, or of as many rows as give the threads enough tasks."""
    pixels = found.rows.places * found.columns.places
    tiles = found.batch * found.groups * -(-found.outputs // (USUAL_VECTORS * isa.lanes))
    rows = 1
    if found.work >= emit.PARALLEL_WORK:
        counts = [n for n in range(1, pixels // FEWEST_PIXELS + 1) if pixels % n == 0]
        rows = next((n for n in counts if n * tiles >= emit.TASKS), max(counts, default=1))
    places = pixels // rows
    return replace(found, rows=Window(rows, 0, 1, 1, 1, rows), columns=Window(places, 0, 1, 1, 1, places))


class PointwiseWriter(PixelTiles):
    """A generator of all pixels of a map for some channels."""

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa) -> None:
        flat = _in_rows(found, isa)
        super().__init__(kernel, flat, isa, (Part(0, flat.columns.places, 0, 1),), 0.0)

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        found = self.found
        stored = self._across * found.outputs * STORE_CYCLES
        return found.batch * found.groups * found.rows.places * (found.inputs * self.row_cycles + stored)

    def _tasks(self, tiles: int) -> int:
        return self.found.batch * self.found.groups * tiles * self.found.rows.places

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found = self.found
        tiles = sum(r.count for r in self.vector_runs)
        rows = found.batch * found.groups * found.rows.places
        parts = emit.shares(found.work, rows, tiles)
        with emit.shared_loop(rows * parts, found.work) as task:
            image, group, part, row = emit.unpacked(task, (found.batch, found.groups, parts, found.rows.places))
            buffers = self._buffers()
            with emit.share_loop(part, parts, tiles) as tile:

                def source(start: tirx.Expr) -> tuple[Walk, Factor]:
                    return self._source(
                        arguments,
                        image * index(found.groups) + group,
                        row * index(found.columns.places) + start,
                    )

                emit.either_run(
                    self.vector_runs,
                    tile,
                    lambda run: self._row(arguments, buffers, run, tile, (image, group, row), source),
                )

    def _source(self, arguments: Arguments, image: tirx.Expr, start: tirx.Expr) -> tuple[Walk, Factor]:
        """The walk over input channels, and the inputs of the map's pixels from `start`."""
        found, pixels = self.found, self.found.rows.places * self.found.columns.places
        flat = arguments.flat(found.data)
        tall = max(r.size for _, r in self.tiles)
        far = 4 * found.inputs * pixels >= FETCHED_BYTES

        def place(pixel: tirx.Expr, input_: tirx.Expr) -> tirx.Expr:
            return (image * index(found.inputs) + input_) * index(pixels) + start + pixel

        def walk(step: Step) -> None:
            def term(input_: tirx.Expr, number: int) -> None:
                # The rows of a map are so far apart that hardware takes none of the next pixels for the next of a
                # stream, and another thread may have written them.
                for line in range(tall, 2 * tall, LINE) if far else ():
                    last = min(line + LINE, 2 * tall) - 1
                    emit.prefetch(flat, place(index(last), input_))
                step((input_, index(0), index(0), index(0)), number)

            emit.in_turn(found.inputs, term)

        def factor(pixel: tirx.Expr, term: Term) -> tirx.Expr:
            return flat[place(pixel, term[0])]

        return walk, factor

    def _place(self, image: tirx.Expr, channel: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> Place:
        """The place in the output of a pixel of the map, whose pixels may be divided into several rows."""
        extents, (batch, out, down, across) = self.kernel.extents, self.found.loops
        pixels = (across,) if down is None else (down, across)
        loops = ((batch,), (out,), pixels)
        pixel = row * index(self.found.columns.places) + column
        return [
            (Axis(n, tuple(extents[i] for i in n)), value)
            for n, value in zip(loops, (image, channel, pixel), strict=True)
        ]
