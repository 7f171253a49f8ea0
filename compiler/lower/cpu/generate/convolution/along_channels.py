"""Convolution in NCHW with vectors along output channels, and its other forms: a comparison of their models.

A tile is some pixels of a row times some vectors of channels. Rows are read in place or copied (`row_tiles.py`); blocks
of input channels (`input_blocks.py`) read far weights once. The other form, if there is one, is the schedule for
contractions, or vectors along pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import tirx

from heterocc.compiler.lower.choices import close, ranked
from heterocc.compiler.lower.cpu.contraction import best_tile
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.copied_rows import COPY_BYTES
from heterocc.compiler.lower.cpu.generate.convolution.dense_rows import DenseRows
from heterocc.compiler.lower.cpu.generate.convolution.direct import DirectWriter, best_writer, is_left_to_schedule
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_planes
from heterocc.compiler.lower.cpu.generate.convolution.input_blocks import MOST_REGISTERS, InputBlocks
from heterocc.compiler.lower.cpu.generate.convolution.row_tiles import CopiedWriter, InPlaceWriter, writers
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.fetch import FAR_NUMBERS
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import LATENCY
from heterocc.compiler.lower.cpu.sizes import is_number

_Writer = InPlaceWriter | CopiedWriter | InputBlocks
Costs = Sequence[tuple[float, _Writer | None]]
"""The modelled times of forms; None is the other form."""

PAYS = 0.95
"""The share of the scheduled kernel's modelled time from which this form is used: its few tiles divide badly among
threads."""

DIRECT_TIME = 1.07
"""The time of the form with vectors along pixels over its modelled one, which leaves out stores."""

BLOCKS_TIME = 1.15
"""The time of convolutions in blocks of input channels over its modelled one, with 32 registers."""

BLOCKS_GAIN = 1.35
"""Their largest modelled time, relative to the least of other forms, for which they are timed."""

SCHEDULED_GAIN = 1.35
"""The largest modelled time of other forms, relative to the scheduled kernel's, for which they are timed: on an Intel
CPU it takes 1.25 times as long as modelled."""

IN_PLACE_GAIN = 1.25
"""The largest modelled time of rows read in place, relative to the least, for which they are timed where a row is long:
copying 288 channels at 1000 made an Intel CPU take 1.27 times as long, against 0.95 by the models."""

MOST_BESIDE_SCHEDULE = 2
"""The most such forms."""

FEWEST_LANES = 8
"""Vectors of fewer lanes are nearly filled by pixels."""

WEIGHTS_CYCLES = 1.0
"""The time in cycles that a vector of weights adds to a step of the scheduled kernel."""

PADDED_CYCLES = 2.6
"""The time in cycles of a padded number of the scheduled kernel's input."""


def generate_along_channels(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as a convolution with vectors along channels.

    None if it is not one, has sizes that are known only at run time, or is faster in another form by the models.
    """
    if isa.lanes < FEWEST_LANES or not all(map(is_number, kernel.extents)):
        return None
    found = find_planes(kernel)
    if found is None or not can_store(kernel) or found.outputs < isa.lanes:
        return None
    if found.taps == 1 and max(found.rows.stride, found.columns.stride) == 1:
        return None
    other = best_writer(DirectWriter, kernel, found, isa.decided)
    left = is_left_to_schedule(other, isa)
    limit = PAYS * _scheduled_cycles(found, isa) if left else DIRECT_TIME * other.cycles
    costs: Costs = [(limit, None), *((writer.cycles, writer) for writer in writers(kernel, found, isa.decided))]
    options = _beside_schedule(costs) if left else close(costs)
    name = "the schedule or vectors along channels" if left else "vectors along channels"
    options = _with_in_place(options, costs) if _is_long(kernel, found, isa.decided) else options
    writer = isa.choose(name, _with_blocks(options, costs, kernel, found, isa.decided))
    if writer is None:
        return None
    return emit.written(kernel, {found.weight: writer.packing.size}, writer.write), (writer.packing,)


def _beside_schedule(costs: Costs) -> list[_Writer | None]:
    """The forms that may be the fastest if the scheduled kernel (None) is one of them."""
    options: list[_Writer | None] = close(costs)
    if options[0] is None:
        ordered = sorted(costs, key=lambda pair: pair[0])
        others = [writer for cost, writer in ordered if writer is not None and cost <= SCHEDULED_GAIN * ordered[0][0]]
        options = ranked(None, [*options, *others[:MOST_BESIDE_SCHEDULE]])
    return options


def _is_long(kernel: Kernel, found: Convolution, isa: Isa) -> bool:
    """Whether what is copied for one row of outputs does not stay in a near cache."""
    return DenseRows(kernel, found, isa).row_bytes > COPY_BYTES


def _with_in_place(options: list[_Writer | None], costs: Costs) -> list[_Writer | None]:
    """The options, and rows read in place if these may be faster than copies that do not stay in a near cache."""
    limit = IN_PLACE_GAIN * min(cost for cost, _ in costs)
    return ranked(
        options[0], [*options[1:], *(w for cost, w in costs if isinstance(w, InPlaceWriter) and cost <= limit)]
    )


def _with_blocks(
    options: list[_Writer | None],
    costs: Costs,
    kernel: Kernel,
    found: Convolution,
    isa: Isa,
) -> list[_Writer | None]:
    """The options, and blocks that read far weights or long rows of many channels once if these may be faster.

    How much they gain is a property of the machine's farther caches, which no model here knows.
    """
    far = found.outputs * found.inputs * found.taps > FAR_NUMBERS
    if isa.registers <= MOST_REGISTERS or not far or found.is_flattened:
        return options
    blocks = InputBlocks(kernel, found, isa)
    cost, least = BLOCKS_TIME * blocks.cycles, min(cost for cost, _ in costs)
    if (blocks.chunks > 1 and not _is_long(kernel, found, isa)) or cost > BLOCKS_GAIN * least:
        return options
    # Copied rows take more than pixels that are read side by side, and these are the likelier to gain.
    place = 0 if cost < least else 1 if blocks.pointwise else len(options)
    return [*options[:place], blocks, *options[place:]]


def _scheduled_cycles(found: Convolution, isa: Isa) -> float:
    """Modelled time of the scheduled kernel: it pads inputs before, and its weights come from a far cache."""
    tile = best_tile(found.columns.places, found.outputs, isa.lanes)
    assert tile is not None
    tall, wide = tile.rows, tile.blocks
    cycles = max(tall * wide / 2, (tall + wide) / 2, LATENCY) + WEIGHTS_CYCLES * wide
    padded = prod((w.places - 1) * w.stride + w.reach + 1 for w in (found.rows, found.columns))
    apart = PADDED_CYCLES * padded if max(found.rows.before, found.columns.before) else 0.0
    return found.work / (tall * tile.channels) * cycles + found.batch * found.groups * found.inputs * apart
