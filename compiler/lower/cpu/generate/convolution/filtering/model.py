"""The blocks of tiles of a convolution by minimal filtering, and their time, by a model of cycles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import SMALL, Filter
from heterocc.compiler.lower.cpu.generate.convolution.filtering.phases import Phases
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window
from heterocc.compiler.lower.cpu.generate.cores import Core
from heterocc.compiler.lower.cpu.generate.emit import PARALLEL_WORK
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.tiles import Run, choose_tile, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import is_number, larger, smaller, typical

THREADS = ((1, 0.45), (2, 0.45), (4, 0.1))
"""Numbers of threads for which the blocks should be good, and their weights: the number at run time is not known."""

PHASE_CYCLES = 1.5
"""The time of a number that is copied to an image of every so many columns, or back, each on its own."""

PARTS = (1, 2, 4, 8)
"""Numbers of parts that the output channels of a block may be cut into."""

SIDES = (14, 28, 56, 112)
"""Heights and widths of maps for which blocks of maps of any size should be good."""

TILES = (32, 64, 96, 128, 192, 256, 384)
"""Numbers of tiles that a block of a map of any size may have at most, unless a row has more."""

CHANNELS_HELD = 16
"""The number of output channels whose products are in the cache with a block's inputs."""

CHANNELS_A_PART = 64
"""The smallest number of output channels for which a block's inputs are transformed apart, if sizes are not known."""

FEW_TASKS = 4
"""The number of tasks for the sake of which they are."""

_WHOLE = Phases(1, 1, 1)
"""The image of a convolution without dilation."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """`count` blocks of `tall` rows of `wide` tiles; the register tiles that cover channels and vectors of one.

    Threads work on different blocks, or on one of `parts` of the output channels of a block, for which each transforms
    the block's inputs by itself. `cycles` is the modelled time of all threads, in the mean over numbers of threads,
    `alone` that of one. `phases` are the images of which a block has tiles.
    """

    isa: Isa
    count: int
    tall: int
    wide: int
    vectors: int
    channel_runs: tuple[Run, ...]
    vector_runs: tuple[Run, ...]
    parts: int
    cycles: float
    alone: float
    phases: Phases

    def __str__(self) -> str:
        apart = " of rows apart" if self.phases.apart else ""
        return f"{self.count}x{self.tall}{apart} in {self.parts}"


def filtering_cycles(conv: Convolution, isa: Isa, filter_: Filter = SMALL) -> float:
    """Modelled time of one thread; of a map of any size, that of a typical one."""
    batch, sides = typical(conv.batch), (conv.rows, conv.columns)
    rows, columns = (replace(w, size=typical(w.size), places=typical(w.places)) for w in sides)
    return choose_blocks(replace(conv, batch=batch, rows=rows, columns=columns), isa, filter_).alone


def choose_blocks(conv: Convolution, isa: Isa, filter_: Filter = SMALL) -> Blocks:
    """The blocks with the least modelled time."""
    if not is_fixed(conv):
        return _sized_blocks(conv, isa)
    conv = replace(conv, batch=conv.batch if is_number(conv.batch) else 1)
    tall = -(-conv.rows.places // (filter_.outputs * conv.rows.dilation))
    heights = sorted({-(-tall // count) for count in range(1, tall + 1)})
    several = PARTS if conv.work >= PARALLEL_WORK else (1,)
    every = (
        _blocks(conv, isa, height, parts, phases, filter_)
        for phases in _phases_of(conv)
        for height in heights
        for parts in several
    )
    return min(every, key=lambda b: b.cycles)


def _phases_of(conv: Convolution) -> list[Phases]:
    """The images without dilation that a block may have: those that a convolution computes, or those of some rows."""
    down, across = conv.rows.dilation, conv.columns.dilation
    return [Phases(down, across, down), *([Phases(1, across, down)] if down > 1 else [])]


def is_fixed(conv: Convolution) -> bool:
    """Whether the sizes of the map are known."""
    return is_number(conv.rows.size) and is_number(conv.columns.size)


def at_side(conv: Convolution, side: int) -> Convolution:
    """The convolution for one image with `side` rows and columns of outputs."""
    windows = (Window(side, w.before, w.taps, w.stride, w.dilation, side) for w in (conv.rows, conv.columns))
    rows, columns = windows
    return replace(conv, batch=1, rows=rows, columns=columns)


def _sized_blocks(conv: Convolution, isa: Isa) -> Blocks:
    """Blocks for maps of any size: as many whole rows of tiles as a number of tiles allows, chosen at run time."""
    sides = [at_side(conv, side) for side in SIDES]

    def cost(tiles: int) -> float:
        heights = [max(1, min(side, tiles // side)) for side in (s // 2 for s in SIDES)]
        found_ = (_blocks(s, isa, h, 1, _WHOLE).alone for s, h in zip(sides, heights, strict=True))
        return sum(time / s.work for time, s in zip(found_, sides, strict=True))

    most = min(TILES, key=cost)
    tall, wide = -(-conv.rows.places // 2), -(-conv.columns.places // 2)
    # Two rows of tiles share half of the rows that they copy; a wide image has them if they stay in the cache.
    held = isa.core.second_cache // (4 * SMALL.planes * (conv.inputs + CHANNELS_HELD))
    rows = larger(most // wide, smaller(2, held // wide))
    count = -(-tall // larger(1, smaller(tall, rows)))
    height = -(-tall // count)
    vectors = -(-height * wide // isa.lanes)
    tile = choose_tile(conv.outputs, most // isa.lanes, _spared(isa))
    channels, columns = runs(conv.outputs, tile[0]), vector_runs(vectors, tile[1])
    parts = larger(1, smaller(conv.outputs // CHANNELS_A_PART, -(-FEW_TASKS // (conv.batch * count))))
    return Blocks(isa, count, height, wide, vectors, channels, columns, parts, 0.0, 0.0, _WHOLE)


def _blocks(
    conv: Convolution,
    isa: Isa,
    height: int,
    parts: int,
    phases: Phases,
    filter_: Filter = SMALL,
) -> Blocks:
    step, planes = filter_.outputs, filter_.planes
    wide = -(-conv.columns.places // (step * phases.across))
    lines = height * phases.count
    isa = isa.narrowed(lines * wide)
    narrow = isa.narrowed(wide).lanes
    # The last row of tiles may be narrower than the vector that transforms it.
    vectors = -(-max(lines * wide, (lines - 1) * wide + narrow) // isa.lanes)
    tile = choose_tile(-(-conv.outputs // parts), vectors, _spared(isa))
    channels, columns = runs(conv.outputs, tile[0], parts), runs(vectors, tile[1])
    images = phases.pitch // phases.down  # in turn
    rows = -(-conv.rows.places // images)
    count = images * -(-rows // min(step * height * phases.down, rows))
    steps = sum(r.count * v.count * isa.core.step_cycles(r.size, v.size) for r in channels for v in columns)
    turns = lines * -(-wide // narrow)
    apart = PHASE_CYCLES * lines * step**2 * wide if phases.count > 1 or phases.apart else 0.0
    core = isa.core
    streamed = _streaming(conv, vectors * isa.lanes, channels, filter_, core)
    tiles = sum(r.count for r in channels)
    inputs = (turns * core.filter_inputs[step] + 2 * apart) * conv.inputs
    outputs = planes * conv.inputs * steps + (turns * core.filter_outputs[step] + apart) * conv.outputs + streamed
    blocks = conv.batch * count

    def time(threads: int) -> float:
        share = -(-tiles // parts) / tiles
        return -(-blocks * parts // threads) * (inputs + share * outputs)

    counts = THREADS if conv.work >= PARALLEL_WORK else ((1, 1.0),)
    cycles = sum(weight * threads * time(threads) for threads, weight in counts)
    return Blocks(isa, count, height, wide, vectors, channels, columns, min(parts, tiles), cycles, time(1), phases)


def _streaming(conv: Convolution, tiles: int, channels: tuple[Run, ...], filter_: Filter, core: Core) -> float:
    """The time of a block for reloading data that does not stay in the second-level cache."""
    walks, planes = sum(r.count for r in channels), filter_.planes
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
