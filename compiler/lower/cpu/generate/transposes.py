"""Generation of maps with transposed inputs: square blocks are transposed in registers.

A block of as many rows as a vector has lanes is loaded row by row, transposed by log2(lanes) stages of shuffles of two
vectors, and stored row by row. Blocks follow the output's rows, so that these are written in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.blocks import dtype_of, loads
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Element, kept_stages
from heterocc.compiler.lower.cpu.generate.places import Axis, Linear, Place, at, index, offset, substituted
from heterocc.compiler.lower.cpu.generate.read import Nest
from heterocc.compiler.lower.cpu.sizes import exceeds

FEWEST_LANES = 4
MOST_LANES = 16
"""The limit on rows of a block: vectors of bytes have more lanes than there are registers."""

MOST_TURNED = 2
"""The limit on transposed arrays of a map: each needs as many registers as a vector has lanes."""


@dataclass(frozen=True, slots=True)
class Turned:
    """A map whose `reads` are contiguous along `across` and whose writes along `along`; `outer` are the other loops."""

    outer: Axis
    across: Axis
    along: Axis
    reads: tuple[tuple[TensorLoad, Linear], ...]
    lanes: int


def find_turned(nest: Nest, along: Axis, lanes: int) -> Turned | None:
    """Read a map whose output is contiguous along the axis `along`; None if it does not transpose an array."""
    every = [
        (load, offset(load.indices, load.source, nest.loops))
        for stage in nest.after
        for load in loads(substituted(stage.value, list(zip(stage.iters, nest.loops, strict=True))))
    ]
    reads: list[tuple[TensorLoad, Linear]] = []
    for load, form in every:
        if form is None or along.step(form) in (0, 1):
            continue
        if any(form == known and load.source.same_as(other.source) for other, known in reads):
            continue
        reads.append((load, form))
    if not reads or len(reads) > MOST_TURNED:
        return None
    rest = [n for n, extent in enumerate(nest.extents) if extent > 1 and n not in along.loops]
    last = next((n for n in rest if all(form.steps[n] == 1 for _, form in reads)), None)
    if last is None:
        return None
    across = _longest(nest, rest, last, [form for _, form in every if form is not None])
    lanes = min(lanes, MOST_LANES)
    while lanes > along.length or lanes > across.length:
        lanes //= 2
    if lanes < FEWEST_LANES:
        return None
    outer = tuple(n for n in rest if n not in across.loops)
    return Turned(Axis(outer, tuple(nest.extents[n] for n in outer)), across, along, tuple(reads), lanes)


def _longest(nest: Nest, rest: Sequence[int], last: int, forms: Sequence[Linear]) -> Axis:
    """The longest axis that ends with loop `last` and is contiguous in all accesses."""
    place = rest.index(last)
    first = place

    def axis(begin: int) -> Axis:
        loops = tuple(rest[begin : place + 1])
        return Axis(loops, tuple(nest.extents[n] for n in loops))

    while first and rest[first - 1] == rest[first] - 1 and all(axis(first - 1).step(f) is not None for f in forms):
        first -= 1
    return axis(first)


def write_turned(nest: Nest, arguments: Arguments, found: Turned, kind: str) -> None:
    """Write the map, block by block; `kind` is that of the loop over the rows of blocks."""
    lanes = found.lanes
    bands = -(-found.across.length // lanes)
    blocks = -(-found.along.length // lanes)
    with emit.loop(found.outer.length * bands, kind) as task:
        outer = found.outer.split(tirx.floordiv(task, index(bands)) if found.outer.loops else index(0))
        place = [(Axis((n,), (nest.extents[n],)), value) for n, value in outer]
        row = _start(tirx.floormod(task, index(bands)) if found.outer.loops else task, found.across.length, lanes)
        with emit.loop(blocks) as block:
            column = _start(block, found.along.length, lanes)
            _write_block(nest, arguments, found, place, row, column)


def _start(number: tirx.Expr, length: int, lanes: int) -> tirx.Expr:
    """The start of a block; a last one that would exceed the end overlaps the previous one."""
    start = number * index(lanes)
    return tirx.min(start, index(length - lanes)) if exceeds(length, lanes) else start


def _write_block(
    nest: Nest, arguments: Arguments, found: Turned, place: Place, row: tirx.Expr, column: tirx.Expr
) -> None:
    lanes = found.lanes
    turned = []
    for load, form in found.reads:
        flat, dtype = arguments.flat(load.source), dtype_of(load)
        rows = [emit.registers(1, lanes, dtype) for _ in range(lanes)]
        for i, register in enumerate(rows):
            where = at(form, [*place, (found.along, column + index(i)), (found.across, row)])
            assert where is not None
            emit.put(register, emit.vector(flat, where, lanes), index(0), lanes)
        turned.append((form, load, transposed(rows, lanes, dtype)))
    for i in range(lanes):
        kept = {n: emit.registers(1, lanes, dtype_of(s.value)) for n, s in kept_stages(nest)}
        with emit.loop(lanes, "vectorized") as lane:
            here = _with_registers(nest, [(form, load, rows[i][lane]) for form, load, rows in turned])
            at_lane = [*place, (found.along, column + lane), (found.across, row + index(i))]
            Element(here, arguments, None, kept, at_lane, lane).store()


def _with_registers(nest: Nest, values: Sequence[tuple[Linear, TensorLoad, tirx.Expr]]) -> Nest:
    """The map's expression with values in place of transposed loads."""
    stages = []
    for stage in nest.after:
        iters = list(zip(stage.iters, nest.loops, strict=True))

        def value(load: TensorLoad, iters: list[tuple[tirx.Var, tirx.Expr]] = iters) -> tirx.Expr:
            form = offset([substituted(i, iters) for i in load.indices], load.source, nest.loops)
            return next((v for f, known, v in values if f == form and known.source.same_as(load.source)), load)

        stages.append(replace(stage, value=substituted(stage.value, [], value)))
    return replace(nest, after=tuple(stages))


def transposed(rows: Sequence[tirx.Buffer], lanes: int, dtype: str = "float32") -> Sequence[tirx.Buffer]:
    """The columns of a square block whose rows are in registers, in registers."""
    distance = 1
    while distance < lanes:
        low = [j if not j & distance else lanes + j - distance for j in range(lanes)]
        high = [j + distance if not j & distance else lanes + j for j in range(lanes)]
        fresh = [emit.registers(1, lanes, dtype) for _ in rows]
        for i in range(lanes):
            if i & distance:
                continue
            first, second = (emit.vector(rows[k], index(0), lanes) for k in (i, i + distance))
            emit.put(fresh[i], tirx.Shuffle([first, second], low), index(0), lanes)
            emit.put(fresh[i + distance], tirx.Shuffle([first, second], high), index(0), lanes)
        rows = fresh
        distance *= 2
    return rows
