"""Maps that put several rows together element by element, as transposed convolutions and shuffles of pixels do.

Element x of such a row is read at x // n of the row that x % n selects. A vector of each of the n rows makes n vectors
of outputs, by shuffles. A transposition to a last dimension of n is such a map, and so is one that reads each element
of a row n times, as nearest neighbour resizing by a whole factor does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Element, kept_stages
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, flat_place, index, loop_values, offset
from heterocc.compiler.lower.cpu.generate.read import Nest
from heterocc.compiler.lower.cpu.generate.spans import widths
from heterocc.compiler.lower.cpu.sizes import exceeds, is_number, smaller
from heterocc.compiler.lower.kernels.expressions import dtype_of, is_conditional, loads, nodes, substituted, uses

FEWEST_LANES = 4
MOST_ROWS = 4
"""The limit on rows that are put together: each is a vector of outputs that is written out."""


@dataclass(frozen=True, slots=True)
class Read:
    """An interleaved load: the place in memory of what the first elements of a vector of outputs read.

    `starts` has one place for each row, in the nest's loops, for outputs from the start of the axis; `last` for the
    last vector of outputs, by its number of lanes.
    """

    load: TensorLoad
    starts: tuple[tirx.Expr, ...]
    last: Mapping[int, tuple[tirx.Expr, ...]]


@dataclass(frozen=True, slots=True)
class Interleaved:
    """A map whose `reads` are those of `rows` rows in turn along its last loop `along`, or its last two.

    Vectors have the first of `widths` that the axis fills.
    """

    outer: Axis
    along: Axis
    rows: int
    reads: tuple[Read, ...]
    widths: tuple[int, ...]


def find_interleaved(nest: Nest, along: Axis, lanes: int) -> Interleaved | None:
    """Read a map that is written along the axis `along` as one that interleaves rows; None if it interleaves none."""
    if len(along.loops) != 1:
        return None
    turned = _with_pixels(nest, along)
    along = turned or along
    variables = [nest.loops[n] for n in along.loops]
    distinct: list[TensorLoad] = []
    for stage in nest.after:
        expr = substituted(stage.value, list(zip(stage.iters, nest.loops, strict=True)))
        if any(map(is_conditional, nodes(expr))):
            return None
        for load in loads(expr):
            form = offset(load.indices, load.source, nest.loops)
            if not any(uses(i, v) for i in load.indices for v in variables):
                continue
            if form is not None and along.step(form) == 1:
                continue
            if (
                (form is None) == (turned is not None)
                or nest.argument(load.source) is None
                or dtype_of(load) != "float32"
            ):
                return None
            if not any(tvm_ffi.structural_equal(load, other) for other in distinct):
                distinct.append(load)
    read = _read if turned is None else _read_turned
    var = variables[-1]
    divisors = {int(n.b) for load in distinct for i in load.indices for n in nodes(i) if _divides(n, var)}
    for rows in sorted(n for n in divisors if 2 <= n <= MOST_ROWS) if turned is None else along.extents[1:]:
        fitting = _widths(along.length, rows, lanes)
        reads = [read(nest, along, load, rows, fitting) for load in distinct] if fitting else []
        if reads and None not in reads:
            outer = nest.axis([n for n, extent in enumerate(nest.extents) if extent > 1 and n not in along.loops])
            return Interleaved(outer, along, rows, tuple(r for r in reads if r is not None), fitting)
    return None


def _with_pixels(nest: Nest, along: Axis) -> Axis | None:
    """A short last loop with the one before it, whose places are read in turn; None if it is not short."""
    before = [n for n in range(along.loops[0]) if nest.extents[n] > 1]
    if not before or not is_number(along.length) or not 2 <= along.length <= MOST_ROWS:
        return None
    return nest.axis([before[-1], *along.loops])


def _divides(node: object, var: tirx.Var) -> bool:
    return (
        isinstance(node, tirx.FloorDiv | tirx.FloorMod) and isinstance(node.b, tirx.IntImm) and bool(uses(node.a, var))
    )


def _widths(length: int, rows: int, lanes: int) -> tuple[int, ...]:
    """The lanes of vectors: one number if the length is known, else several: a run takes the first that fits."""
    if not is_number(length):
        return tuple(width for width in widths(lanes, few=True) if width >= FEWEST_LANES)
    while lanes * rows > length:
        lanes //= 2
    return (lanes,) if lanes >= FEWEST_LANES else ()


def _read(nest: Nest, along: Axis, load: TensorLoad, rows: int, lanes: Sequence[int]) -> Read | None:
    """A load as that of `rows` rows in turn; None if it is not one."""
    starts = _starts(nest, along, load, rows, (0, -(-along.length // rows)))
    last = {width: _starts(nest, along, load, rows, (along.length - rows * width, width)) for width in lanes}
    known = {width: places for width, places in last.items() if places is not None}
    return None if starts is None or len(known) < len(last) else Read(load, starts, known)


def _read_turned(nest: Nest, along: Axis, load: TensorLoad, rows: int, lanes: Sequence[int]) -> Read | None:
    """A load of `rows` rows that the last loop of `along` selects, and whose elements follow along the one before."""
    form = offset(load.indices, load.source, nest.loops)
    pixels, inner = along.loops
    if form is None or form.steps[pixels] != 1:
        return None
    firsts = [[(nest.loops[pixels], index(0)), (nest.loops[inner], index(row))] for row in range(rows)]
    starts = tuple(flat_place([substituted(i, f) for i in load.indices], load.source) for f in firsts)
    last = {width: tuple(start + index(nest.extents[pixels] - width) for start in starts) for width in lanes}
    return Read(load, starts, last)


def _starts(
    nest: Nest, along: Axis, load: TensorLoad, rows: int, part: tuple[int, int]
) -> tuple[tirx.Expr, ...] | None:
    """The place in memory of what each of `rows` outputs reads, if those after them read the places that follow.

    `part` is the first of the outputs, and how many of each row there are.
    """
    number = along.loops[0]
    first, count = part
    step = tirx.Var("step", nest.loops[number].ty)
    known = sym.Analyzer()
    for loop, extent in zip(nest.loops, nest.extents, strict=True):
        if not loop.same_as(nest.loops[number]):
            known.bind(loop, tvm.ir.Range(index(0), index(extent)))
    starts = []
    for row in range(rows):
        left = -(-(along.length - first - row) // rows)
        known.bind(step, tvm.ir.Range(index(0), index(smaller(count, left))), True)
        value = step * index(rows) + index(first + row)
        here = [known.simplify(substituted(i, [(nest.loops[number], value)])) for i in load.indices]
        there = [known.simplify(substituted(i, [(step, index(0))])) for i in here]
        if not _follow(here, there, step, load.source, known):
            return None
        starts.append(known.simplify(flat_place(there, load.source)))
    return tuple(starts)


def _follow(
    here: Sequence[tirx.Expr], there: Sequence[tirx.Expr], step: tirx.Var, buffer: tirx.Buffer, known: sym.Analyzer
) -> bool:
    """Whether the element at `here` is `step` elements behind that at `there`."""
    apart = [known.simplify(a - b) for a, b in zip(here, there, strict=True)]
    if all(isinstance(gap, tirx.IntImm) and int(gap) == 0 for gap in apart[:-1]):
        rest = known.simplify(apart[-1] - step)
    else:  # a Reshape may divide a row among several indices
        rest = known.simplify(flat_place(here, buffer) - flat_place(there, buffer) - step)
    return isinstance(rest, tirx.IntImm) and int(rest) == 0


def write_interleaved(nest: Nest, arguments: Arguments, form: Interleaved, kind: str) -> None:
    """Write the map row by row; `kind` is that of the loop over rows of outputs."""
    with emit.loop(form.outer.length, kind) as row:
        loops = emit.split(form.outer, row) if form.outer.loops else []
        place = [(nest.axis([n]), value) for n, value in loops]
        if is_number(form.along.length):
            _write_row(nest, arguments, form, place, form.widths[0])
        else:
            _write_narrowing(nest, arguments, form, place, form.widths)


def _write_narrowing(nest: Nest, arguments: Arguments, form: Interleaved, place: Place, lanes: Sequence[int]) -> None:
    """A row of a length that is known only at run time, in the widest vectors that it fills."""
    length = form.along.length
    if lanes:
        emit.either(
            index(length) >= index(lanes[0] * form.rows),
            lambda: _write_row(nest, arguments, form, place, lanes[0]),
            lambda: _write_narrowing(nest, arguments, form, place, lanes[1:]),
        )
        return
    with emit.loop(length) as number:
        kept = {n: emit.registers(1, 1, dtype_of(s.value)) for n, s in kept_stages(nest)}
        Element(nest, arguments, None, kept, [*place, (form.along, number)], index(0)).store()


def _write_row(nest: Nest, arguments: Arguments, form: Interleaved, place: Place, lanes: int) -> None:
    length, block = form.along.length, lanes * form.rows
    with emit.loop(length // block) as number:
        starts = [[start + number * index(lanes) for start in read.starts] for read in form.reads]
        _write_vectors(nest, arguments, form, place, number * index(block), starts, lanes)
    if exceeds(length, block):
        last = [list(read.last[lanes]) for read in form.reads]
        _write_vectors(nest, arguments, form, place, index(length - block), last, lanes)


def _write_vectors(
    nest: Nest,
    arguments: Arguments,
    form: Interleaved,
    place: Place,
    first: tirx.Expr,
    starts: Sequence[Sequence[tirx.Expr]],
    lanes: int,
) -> None:
    """The outputs from `first` of a vector of each row; `starts` are the vectors' places for each load."""
    rows = form.rows
    here = loop_values([*place, (form.along, first)], nest.loops)
    read = []
    for load, places in zip(form.reads, starts, strict=True):
        flat = arguments.flat(load.load.source)
        vectors = [emit.registers(1, lanes) for _ in places]
        for register, start in zip(vectors, places, strict=True):
            emit.put(register, emit.vector(flat, substituted(start, here), lanes), index(0), lanes)
        read.append((load.load, vectors))
    for part in range(rows):
        values = []
        for load, vectors in read:
            mixed = emit.registers(1, lanes)
            whole = [emit.vector(register, index(0), lanes) for register in vectors]
            emit.put(mixed, interleaved(whole, lanes, part), index(0), lanes)
            values.append((load, mixed))
        kept = {n: emit.registers(1, lanes, dtype_of(s.value)) for n, s in kept_stages(nest)}
        with emit.loop(lanes, "vectorized") as lane:
            every = [*place, (form.along, first + index(part * lanes) + lane)]
            known = [(load, mixed[lane]) for load, mixed in values]
            Element(_with_registers(nest, known), arguments, None, kept, every, lane).store()


def interleaved(vectors: Sequence[tirx.Expr], lanes: int, part: int) -> tirx.Expr:
    """Vector number `part` of as many as there are `vectors`, whose elements are put together one by one in turn."""
    count = len(vectors)
    numbers = range(part * lanes, (part + 1) * lanes)
    return tirx.Shuffle(list(vectors), [number % count * lanes + number // count for number in numbers])


def _with_registers(nest: Nest, values: Sequence[tuple[TensorLoad, tirx.Expr]]) -> Nest:
    """The map with values in place of interleaved loads."""

    def value(load: TensorLoad) -> tirx.Expr:
        return next((v for known, v in values if tvm_ffi.structural_equal(load, known)), load)

    stages = []
    for stage in nest.after:
        expr = substituted(stage.value, list(zip(stage.iters, nest.loops, strict=True)))
        stages.append(replace(stage, iters=nest.loops, value=substituted(expr, [], value)))
    return replace(nest, after=tuple(stages))
