"""The schedules of convolutions with vectors along output channels: in place, with copied rows, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiles import ChannelTiles
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiling import Schedule, Tiling
from heterocc.compiler.lower.cpu.generate.convolution.dense_rows import DenseRows
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window, find_planes
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import MOST_ROWS
from heterocc.compiler.lower.cpu.sizes import is_number, typical

FEWEST_LANES = 8
"""Vectors of fewer lanes are nearly filled by pixels."""

FEWEST_PIXELS = 2
"""The smallest number of pixels: a single one is a product with a vector."""

FEWEST_OF_A_ROW = 48
"""The smallest number of pixels of a row that a map is divided into: few would be left over in each."""

USUAL_VECTORS = 2
"""The vectors of most tiles."""

FEWEST_IN_ROW = 8
"""The smallest number of pixels of a row that has tiles of its own, with 32 registers: pixels of several rows in a tile
are at places that are looked up, one by one, and with more of them than a CPU has registers for addresses."""


def propose_channels(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a convolution of images of a fixed size, whose number may be any, with vectors along channels."""
    conv = find_planes(kernel) if _has_fixed_images(kernel) else None
    if conv is None or not can_store(kernel) or not _suits(conv, isa):
        return
    for schedule in (*_in_place(conv, isa), *_with_rows(kernel, conv, isa)):
        yield _candidate(kernel, conv, isa, schedule)
    pixels = _in_rows(conv, isa) or conv if _is_in_order(conv) else conv
    yield _candidate(kernel, pixels, isa, _in_blocks(pixels, isa, rearranged=pixels is not conv))


def _has_fixed_images(kernel: Kernel) -> bool:
    """Whether all sizes but the first of the output are numbers."""
    return all(is_number(extent) for loop, extent in enumerate(kernel.extents) if loop not in kernel.places[:1])


def _candidate(kernel: Kernel, conv: Convolution, isa: Isa, schedule: Schedule) -> Candidate:
    writer = partial(ChannelTiles, kernel, conv, schedule=schedule)
    return Candidate(schedule.form, Tiling(kernel, conv, isa, schedule).cycles, writer, schedule.detail)


def _suits(conv: Convolution, isa: Isa) -> bool:
    """Whether channels fill a vector, and there are several pixels, to each of which a weight that is read serves."""
    pixels = conv.rows.places * conv.columns.places
    return isa.lanes >= FEWEST_LANES and conv.outputs >= isa.lanes and pixels >= FEWEST_PIXELS


def _in_place(conv: Convolution, isa: Isa) -> Iterator[Schedule]:
    """Rows in place, each divided where the taps inside change: this suits dilated kernels.

    Chunks are as few as give threads enough tasks, because each reads the weights.
    """
    if not conv.is_flattened:
        tiles = conv.usual_images * -(-conv.outputs // (USUAL_VECTORS * isa.lanes))
        chunks = -(-emit.TASKS // tiles) if typical(conv.work) >= emit.PARALLEL_WORK else 1
        yield Schedule("rows in place", "in place", -(-conv.rows.places // chunks))


def _with_rows(kernel: Kernel, conv: Convolution, isa: Isa) -> Iterator[Schedule]:
    """Rows that are copied for each chunk, in tiles of one row or of several, of maps with narrow rows."""
    deepest = max(1, min(MOST_ROWS, isa.registers // 2 - 2) // conv.columns.places)
    rows = DenseRows(kernel, conv, isa).rows
    for deep in range(1, min(deepest, rows) + 1):
        yield Schedule("copied rows", "rows", rows, deep)


def _is_pointwise(conv: Convolution) -> bool:
    return conv.taps == 1 and conv.rows.is_inside and conv.columns.is_inside and not conv.is_flattened


def _is_in_order(conv: Convolution) -> bool:
    """Whether the pixels that a 1x1 convolution reads of a row are all that are there, so that rows are one line."""
    rows, columns = conv.rows, conv.columns
    return _is_pointwise(conv) and rows.stride == columns.stride == 1 and columns.places == columns.size


def _in_blocks(conv: Convolution, isa: Isa, *, rearranged: bool) -> Schedule:
    """Blocks of input channels; of 1x1 with 32 registers one block of all, with the pixels of a chunk in one line."""
    rows, columns = conv.rows, conv.columns
    tall = 1 if rearranged else max(1, min(rows.places, isa.core.block_pixels // columns.places))
    tall = -(-rows.places // -(-rows.places // tall))
    if _is_pointwise(conv):
        return Schedule("pixels", "in place" if _is_in_order(conv) else "pixels", tall, tall, blocked=True)
    wide = not isa.core.few_registers and columns.places >= FEWEST_IN_ROW
    return Schedule("blocks of inputs", "rows", tall, 1 if wide or rows.places == 1 else tall, blocked=True)


def _in_rows(conv: Convolution, isa: Isa) -> Convolution | None:
    """The 1x1 convolution of a map whose pixels are in other rows, each a chunk: as many as give threads enough tasks.

    None with 16 registers, or if no number of rows divides the pixels so.
    """
    pixels = conv.rows.places * conv.columns.places
    tiles = conv.usual_images * -(-conv.outputs // (USUAL_VECTORS * isa.lanes))
    counts = [n for n in range(-(-pixels // isa.core.block_pixels), pixels // FEWEST_OF_A_ROW + 1) if pixels % n == 0]
    if isa.core.few_registers or not counts or conv.rows.places < conv.rows.size:
        return None
    wanted = emit.TASKS if typical(conv.work) >= emit.PARALLEL_WORK else 1
    rows = next((n for n in counts if n * tiles >= wanted), counts[-1])
    places = pixels // rows
    return replace(conv, rows=Window(rows, 0, 1, 1, 1, rows), columns=Window(places, 0, 1, 1, 1, places))
