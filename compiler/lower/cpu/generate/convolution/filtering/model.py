"""The blocks of tiles of a convolution by minimal filtering, and their time, by a model of cycles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import SMALL, Filter
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution
from heterocc.compiler.lower.cpu.generate.cores import Core
from heterocc.compiler.lower.cpu.generate.emit import PARALLEL_WORK, sharing
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.tiles import Run, choose_tile, cycles_of, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number, larger, smaller, typical

PHASE_CYCLES = 1.5
"""The time of a number that is copied to an image of every so many columns, or back, each on its own."""

PARTS = (1, 2, 4, 8)
"""Numbers of parts that the output channels of a block may be cut into."""

CHANNELS_HELD = 16
"""The number of output channels whose products are in the cache with a block's inputs."""

CHANNELS_A_PART = 64
"""The smallest number of output channels for which a block's inputs are transformed apart, if sizes are not known."""

FEW_TASKS = 4
"""The number of tasks for the sake of which they are."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """`count` blocks of `tall` rows of `wide` tiles; the register tiles that cover channels and vectors of one.

    A dilated convolution is as many without dilation as there are remainders of rows and columns by the dilations: a
    block has rows of one remainder, and the tiles of each remainder of the columns, one behind the other.

    Threads work on different blocks, or on one of `parts` of the output channels of a block, for which each transforms
    the block's inputs by itself. `cycles` is the modelled time.
    """

    isa: Isa
    count: Size
    tall: Size
    wide: Size
    vectors: Size
    channel_runs: tuple[Run, ...]
    vector_runs: tuple[Run, ...]
    parts: Size
    cycles: float

    def __str__(self) -> str:
        return f"{self.count}x{self.tall} in {self.parts}"


def filtering_cycles(conv: Convolution, isa: Isa, filter_: Filter = SMALL) -> float:
    """Modelled time; of a map of any size, that of a typical one."""
    return choose_blocks(_typical(conv), isa, filter_).cycles


def _typical(conv: Convolution) -> Convolution:
    """The convolution of a map and a batch of typical sizes."""
    rows, columns = (replace(w, size=typical(w.size), places=typical(w.places)) for w in (conv.rows, conv.columns))
    return replace(conv, batch=typical(conv.batch), rows=rows, columns=columns)


def choose_blocks(conv: Convolution, isa: Isa, filter_: Filter = SMALL) -> Blocks:
    """The blocks with the least modelled time."""
    if not is_fixed(conv):
        return _sized_blocks(conv, isa)
    conv = replace(conv, batch=conv.batch if is_number(conv.batch) else 1)
    tall = -(-as_number(conv.rows.places) // (filter_.outputs * conv.rows.dilation))
    heights = sorted({-(-tall // count) for count in range(1, tall + 1)})
    several = PARTS if typical(conv.work) >= PARALLEL_WORK else (1,)
    every = (_blocks(conv, isa, height, parts, filter_) for height in heights for parts in several)
    return min(every, key=lambda b: b.cycles)


def is_fixed(conv: Convolution) -> bool:
    """Whether the sizes of the map are known."""
    return is_number(conv.rows.size) and is_number(conv.columns.size)


def _sized_blocks(conv: Convolution, isa: Isa) -> Blocks:
    """Blocks for maps of any size: as many whole rows of tiles as those of a typical map have tiles."""
    usual = choose_blocks(_typical(conv), isa)
    most = as_number(usual.tall * usual.wide)
    tall, wide = -(-conv.rows.places // 2), -(-conv.columns.places // 2)
    # Two rows of tiles share half of the rows that they copy; a wide image has them if they stay in the cache.
    held = isa.core.second_cache // (4 * SMALL.planes * (conv.inputs + CHANNELS_HELD))
    rows = larger(most // wide, smaller(2, held // wide))
    height = -(-tall // -(-tall // larger(1, smaller(tall, rows))))
    count = -(-tall // height)
    vectors = -(-height * wide // isa.lanes)
    tile = choose_tile(conv.outputs, max(1, most // isa.lanes), _spared(isa))
    channels, columns = runs(conv.outputs, tile[0]), vector_runs(vectors, tile[1])
    parts = larger(1, smaller(conv.outputs // CHANNELS_A_PART, -(-FEW_TASKS // (conv.batch * count))))
    return Blocks(isa, count, height, wide, vectors, channels, columns, parts, 0.0)


def _blocks(conv: Convolution, isa: Isa, height: int, parts: int, filter_: Filter) -> Blocks:
    step, planes = filter_.outputs, filter_.planes
    wide = -(-as_number(conv.columns.places) // (step * conv.columns.dilation))
    lines = height * conv.columns.dilation
    isa = isa.narrowed(lines * wide)
    narrow = isa.narrowed(wide).lanes
    # The last row of tiles may be narrower than the vector that transforms it.
    vectors = -(-max(lines * wide, (lines - 1) * wide + narrow) // isa.lanes)
    tile = choose_tile(-(-conv.outputs // parts), vectors, _spared(isa))
    channels, columns = runs(conv.outputs, tile[0], parts), runs(vectors, tile[1])
    rows = -(-as_number(conv.rows.places) // conv.rows.dilation)
    count = conv.rows.dilation * -(-rows // min(step * height, rows))
    steps = cycles_of(channels, columns, isa.core)
    turns = lines * -(-wide // narrow)
    apart = PHASE_CYCLES * lines * step**2 * wide if conv.columns.dilation > 1 else 0.0
    core = isa.core
    streamed = _streaming(conv, vectors * isa.lanes, channels, filter_, core)
    tiles = as_number(sum(r.count for r in channels))
    inputs = (turns * core.filter_inputs[step] + 2 * apart) * conv.inputs
    outputs = planes * conv.inputs * steps + (turns * core.filter_outputs[step] + apart) * conv.outputs + streamed
    tasks, share = as_number(conv.batch) * count * parts, -(-tiles // parts) / tiles
    cycles = tasks * (inputs + share * outputs) * sharing(conv.work, tasks)
    return Blocks(isa, count, height, wide, vectors, channels, columns, min(parts, tiles), cycles)


def _streaming(conv: Convolution, tiles: int, channels: tuple[Run, ...], filter_: Filter, core: Core) -> float:
    """The time of a block for reloading data that does not stay in the second-level cache."""
    walks, planes = as_number(sum(r.count for r in channels)), filter_.planes
    inputs = planes * 4 * conv.inputs * tiles
    products = planes * 4 * max(r.size for r in channels) * tiles
    weights = planes * 4 * conv.inputs * conv.outputs
    read = weights / core.filter_weights[filter_.outputs] if weights + inputs + products > core.second_cache else 0
    total = 0
    if inputs + products > core.second_cache:
        total += walks * inputs
    if 2 * products > core.second_cache:
        total += walks * 2 * products
    return read + total / (core.memory_stream if inputs + products > core.third_cache else core.third_stream)


def _spared(isa: Isa) -> Isa:
    return replace(isa, registers=isa.registers - isa.core.spare)
