"""Generation of maps with transposed inputs: square blocks are transposed in registers.

A block of as many rows as a vector has lanes is loaded row by row, transposed by log2(lanes) stages of shuffles of two
vectors, and stored row by row. Blocks follow the output's rows, so that these are written in order; a last one overlaps
another. What is read under a condition, as padding is, may lie outside an array: a block that reaches beyond its memory
is read element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Element, Read, kept_registers
from heterocc.compiler.lower.cpu.generate.places import (
    Axis,
    Linear,
    Place,
    index,
    is_dense,
    offset,
    offset_at,
    overlapping,
    shape_of,
)
from heterocc.compiler.lower.cpu.generate.read import Nest
from heterocc.compiler.lower.cpu.sizes import filled, is_one, larger, smaller, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of, is_conditional, loads, nodes

FEWEST_LANES = 4
MOST_LANES = 16
"""The limit on rows of a block: vectors of bytes have more lanes than there are registers."""

MOST_TRANSPOSED = 8
"""The limit on transposed arrays of a map, for the length of its code. Registers hold two, and with eight a map still
takes a quarter of the time of reads one by one."""


@dataclass(frozen=True, slots=True)
class Transposed:
    """A map whose `reads`, some loads each, are contiguous along `across`, and whose writes along `along`.

    `outer` are the other loops. `conditional` says whether reads may be outside an array, and are not used then.
    """

    outer: Axis
    across: Axis
    along: Axis
    reads: Sequence[tuple[list[TensorLoad], Linear]]
    lanes: int
    conditional: bool


def find_transposed(nest: Nest, along: Axis, lanes: int) -> Transposed | None:
    """Read a map whose output is contiguous along the axis `along`; None if it does not transpose an array."""
    every = [
        (load, offset(load.indices, load.source, stage.iters)) for stage in nest.after for load in loads(stage.value)
    ]
    reads: list[tuple[list[TensorLoad], Linear]] = []
    for load, form in every:
        if form is None or is_dense(along.step(form)):
            continue
        same = (some for some, known in reads if load.source.same_as(some[0].source) and form.is_same(known))
        if (some := next(same, None)) is not None:
            some.append(load)
        else:
            reads.append(([load], form))
    if not reads or len(reads) > MOST_TRANSPOSED:
        return None
    rest = [n for n, extent in enumerate(nest.extents) if not is_one(extent) and n not in along.loops]
    last = next((n for n in rest if all(is_one(form.steps[n]) for _, form in reads)), None)
    if last is None:
        return None
    forms = [*(form for _, form in every), *(offset(s.iters, s.buffer, s.iters) for s in nest.after)]
    across = nest.last_run(rest[: rest.index(last) + 1], [form for form in forms if form is not None])
    lanes = filled(min(lanes, MOST_LANES), along.length, across.length)
    if lanes < FEWEST_LANES:
        return None
    outer = nest.axis([n for n in rest if n not in across.loops])
    conditional = any(is_conditional(node) for stage in nest.after for node in nodes(stage.value))
    return Transposed(outer, across, along, reads, lanes, conditional)


def write_transposed(nest: Nest, arguments: Arguments, map_: Transposed, kind: str) -> None:
    """Write the map, block by block; `kind` is that of the loop that threads share.

    Threads share bands, as many rows of the output as a block has. Few bands are shared by parts of their length: the
    last two may overlap, and two threads that write the same rows wait for each other's cache lines all the time.
    """
    lanes = map_.lanes
    bands = -(-map_.across.length // lanes)
    blocks = -(-map_.along.length // lanes)
    few = typical(map_.outer.length * bands) < emit.TASKS
    parts = larger(1, smaller(blocks, -(-emit.TASKS // map_.outer.length))) if few and kind == "parallel" else 1
    with emit.loop(map_.outer.length * (parts if few else bands), kind) as task:
        outer_, shared = emit.unpacked(task, (map_.outer.length, parts if few else bands))
        place = nest.place(emit.split(map_.outer, outer_))

        def band(number: tirx.Expr, part: tirx.Expr) -> None:
            row = overlapping(number * index(lanes), map_.across.length, lanes)
            with emit.share_loop(part, parts, blocks) as block:
                column = overlapping(block * index(lanes), map_.along.length, lanes)
                _write_block(nest, arguments, map_, place, row, column)

        if few:
            with emit.loop(bands) as number:
                band(number, shared)
        else:
            band(shared, index(0))


def _write_block(
    nest: Nest, arguments: Arguments, map_: Transposed, place: Place, row: tirx.Expr, column: tirx.Expr
) -> None:
    """Write a block: in registers, unless a vector of a conditional read would be outside the array."""
    lanes = map_.lanes

    def start(form: Linear, i: int) -> tirx.Expr:
        return offset_at(form, [*place, (map_.along, column + index(i)), (map_.across, row)])

    def turn() -> None:
        blocks = []
        for some, form in map_.reads:
            dtype, flat = dtype_of(some[0]), arguments.flat(some[0].source)
            rows = [emit.registers(1, lanes, dtype) for _ in range(lanes)]
            for i, register in enumerate(rows):
                emit.put(register, emit.vector(flat, start(form, i), lanes), index(0), lanes)
            blocks.append((some, transposed(rows, lanes, dtype)))
        for i in range(lanes):
            rows_at = [(load, rows[i]) for some, rows in blocks for load in some]
            _store_row(nest, arguments, map_, place, row + index(i), column, rows_at)

    if not map_.conditional:
        turn()
        return
    inside = []
    for some, form in map_.reads:
        size = index(math.prod(shape_of(some[0].source) or ()) - lanes)
        inside += [limit for i in (0, lanes - 1) for limit in (start(form, i) >= index(0), start(form, i) <= size)]

    def one_by_one() -> None:
        with emit.loop(lanes) as number:
            _store_row(nest, arguments, map_, place, row + number, column)

    emit.either(tirx.all(*inside), turn, one_by_one)


def _store_row(
    nest: Nest,
    arguments: Arguments,
    map_: Transposed,
    place: Place,
    row: tirx.Expr,
    column: tirx.Expr,
    read: Sequence[Read] = (),
) -> None:
    """Store a vector of a row of the output, of which registers have what transposed loads `read`."""
    kept = kept_registers(nest, map_.lanes)
    with emit.loop(map_.lanes, "vectorized") as lane:
        at_lane = [*place, (map_.along, column + lane), (map_.across, row)]
        Element(nest, arguments, None, kept, at_lane, lane, read).store()


def transposed(rows: Sequence[tirx.Buffer], lanes: int, dtype: str = "float32") -> Sequence[tirx.Buffer]:
    """The columns of a square block whose rows are in registers, in registers."""
    distance = 1
    while distance < lanes:
        fresh = [emit.registers(1, lanes, dtype) for _ in rows]
        for i in range(lanes):
            if i & distance:
                continue
            both = _exchanged(rows[i], rows[i + distance], lanes, distance)
            for number, value in zip((i, i + distance), both, strict=True):
                emit.put(fresh[number], value, index(0), lanes)
        rows = fresh
        distance *= 2
    return rows


def sums_of_rows(rows: Sequence[tirx.Buffer], lanes: int) -> tirx.Buffer:
    """The sum of each row of a square block in registers, as a lane of one: the block is transposed and its rows added.

    They are added as soon as two are known, which halves the number of registers in each step.
    """
    distance = 1
    while len(rows) > 1:
        fresh = [emit.registers(1, lanes) for _ in rows[::2]]
        for total, first, second in zip(fresh, rows[::2], rows[1::2], strict=True):
            emit.put(total, tirx.Add(*_exchanged(first, second, lanes, distance)), index(0), lanes)
        rows = fresh
        distance *= 2
    return rows[0]


def _exchanged(first: tirx.Buffer, second: tirx.Buffer, lanes: int, distance: int) -> list[tirx.Expr]:
    """Two vectors after the exchange of every second run of `distance` lanes of the first with the run before it."""
    both = [emit.vector(row, index(0), lanes) for row in (first, second)]
    low = [j if not j & distance else lanes + j - distance for j in range(lanes)]
    high = [j + distance if not j & distance else lanes + j for j in range(lanes)]
    return [tirx.Shuffle(both, places) for places in (low, high)]
