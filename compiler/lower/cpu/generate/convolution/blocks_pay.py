"""Whether a convolution is computed in blocks of input channels: a comparison of the models of all forms."""

from __future__ import annotations

import math

from tvm import tirx

from heterocc.compiler.lower.choices import close
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.direct import DirectWriter, best_writer
from heterocc.compiler.lower.cpu.generate.convolution.filtering.winograd import is_filtered
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_convolution, find_planes
from heterocc.compiler.lower.cpu.generate.convolution.input_blocks import (
    LINES_BYTES,
    MOST_REGISTERS,
    PIXELS,
    InputBlocks,
)
from heterocc.compiler.lower.cpu.generate.convolution.pointwise import PAYS, PointwiseWriter, fits
from heterocc.compiler.lower.cpu.generate.convolution.row_tiles import writers
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.products.product import modelled_cycles
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import tile_cycles
from heterocc.compiler.lower.cpu.sizes import is_number

FEWEST_LANES = 8
"""Vectors of fewer lanes are nearly filled by pixels."""

FEWEST_PRODUCTS = 1 << 18
"""The smallest number of multiply-adds for which the sums are kept in memory."""

CHUNKS = (PIXELS, 128, 64)
"""Limits on the pixels of a chunk: with many output channels the sums of fewer pixels need fewer parts, each of which
copies the inputs again. With 16 registers only the first was measured."""

DIRECT_TIME = 1.07
STRIDED_TIME = 1.2
POINT_TIME = 1.1
"""The time of direct convolutions over their modelled one: without and with strides, and also of 1x1."""

PANEL_BYTES = 64
"""What a tile of a product reads of each row of its panel, and a tile of pixels of the weights of an input channel."""

SMALL_MAP = 256
"""The bytes of a map that all tiles read one after the other, so that it has to stay in the cache as a whole."""

FAR_PANEL = 64 << 10
FAR_TILE = 20 << 10
"""The sizes of panels of products, and of what tiles of pixels read, that the first-level cache does not hold."""

NEAR_TIME = 0.98
FAR_TIME = 1.15
COPIED_TIME = 1.5
COPIED_TIME_WIDE = 1.35
"""The time of products and of tiles of pixels, over their modelled one: with smaller and with larger ones, and of
products that copy columns with strides, also with 32 registers (measured on a Zen 4)."""


def generate_input_blocks(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as a convolution in blocks of input channels.

    None if it is not one, has sizes that are known only at run time, or is faster in another form by the models.
    """
    if isa.lanes < FEWEST_LANES or not all(map(is_number, kernel.extents)):
        return None
    found = find_planes(kernel)
    if found is None or not can_store(kernel) or found.outputs < isa.lanes or found.work < FEWEST_PRODUCTS:
        return None
    if is_filtered(found, isa) or not _is_modelled(kernel, found, isa):
        return None
    every = CHUNKS if isa.registers > MOST_REGISTERS else CHUNKS[:1]
    cycles, pixels = min((InputBlocks(kernel, found, isa.decided, pixels).cycles, pixels) for pixels in every)
    costs = [(_other_cycles(kernel, found, isa.decided), False), (cycles, True)]
    if not isa.choose("blocks of inputs", close(costs)):
        return None
    writer = InputBlocks(kernel, found, isa, pixels)
    return emit.written(kernel, {found.weight: writer.packing.size}, writer.write), (writer.packing,)


def _is_modelled(kernel: Kernel, found: Convolution, isa: Isa) -> bool:
    """Whether the models of all forms were compared with measurements.

    With 32 registers of 16 lanes fewer tiles read each weight, and blocks pay less: they were measured only beside
    products that copy columns with strides.
    """
    if isa.registers <= MOST_REGISTERS:
        return True
    if found.taps > 1 or max(found.rows.stride, found.columns.stride) == 1:
        return False
    product = modelled_cycles(kernel, isa.decided)
    return product is not None and math.isfinite(product)


def _other_cycles(kernel: Kernel, found: Convolution, isa: Isa) -> float:
    """Modelled time of the other forms, with what their models leave out where little stays in the near cache."""
    strided = max(found.rows.stride, found.columns.stride) > 1
    product = modelled_cycles(kernel, isa) if found.taps == 1 else None
    if product is None:
        writer = best_writer(DirectWriter, kernel, found, isa)
        # Rows of a single vector have tiles in which each number is multiplied once.
        filling = tile_cycles(found.outputs, writer.vectors, isa) / tile_cycles(found.outputs, PIXELS // isa.lanes, isa)
        direct = writer.cycles * filling * (STRIDED_TIME if strided else DIRECT_TIME)
        if found.taps == 1:
            return direct * POINT_TIME
        return min([direct, *(writer.cycles for writer in writers(kernel, found, isa))])
    flat = find_convolution(kernel)
    if flat is not None and fits(flat, isa):
        pixels = PointwiseWriter(kernel, flat, isa).cycles
        if pixels <= PAYS * product:
            map_ = 4 * found.rows.places * found.columns.places
            read = PANEL_BYTES + (map_ if map_ <= SMALL_MAP else LINES_BYTES)
            return pixels * (FAR_TIME if found.inputs * read > FAR_TILE else 1.0)
    far = found.inputs * PANEL_BYTES > FAR_PANEL
    copied = COPIED_TIME if isa.registers <= MOST_REGISTERS else COPIED_TIME_WIDE
    return product * (copied if strided else FAR_TIME if far else NEAR_TIME)
