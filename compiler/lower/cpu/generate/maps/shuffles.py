"""Maps that put several rows together element by element: they load vectors of the rows, and shuffle them.

Transposed convolutions and shuffles of pixels are such maps: element x is read at x // n of the row that x % n selects,
and a vector of each of the n rows makes n vectors of outputs. So is a transposition to a last dimension of n, and a map
that reads each element of a row n times, as nearest neighbour resizing by a whole factor does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import sym, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Read
from heterocc.compiler.lower.cpu.generate.places import (
    Axis,
    Place,
    flat_place,
    index,
    is_dense,
    loop_values,
    offset,
)
from heterocc.compiler.lower.cpu.generate.read import Nest
from heterocc.compiler.lower.cpu.sizes import is_number, is_one
from heterocc.compiler.lower.kernels.expressions import (
    dtype_of,
    is_conditional,
    is_zero,
    loads,
    nodes,
    substituted,
    uses,
)

FEWEST_LANES = 4
"""The shortest vectors for which this pays."""

MOST = 4
"""The most rows that are put together."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A load of numbers of several rows, which `starts` begin in memory."""

    load: TensorLoad
    starts: Sequence[tirx.Expr]


def rows_in_turn(nest: Nest, outer: Axis, axis: Axis) -> tuple[Axis, int]:
    """The axis of vectors, and how many rows its elements are read from in turn: 1 if this is not so.

    A short last loop that selects the row is one axis with the last of the `outer` loops.
    """
    before = [n for n in outer.loops if not is_one(nest.extents[n])]
    if before and is_number(axis.length) and 2 <= axis.length <= MOST:
        longer = nest.axis([before[-1], *axis.loops])
        return (longer, axis.length) if _in_turn(nest, longer, axis.length, 0) else (axis, 1)
    var = axis.loops[-1]
    divided = [
        int(n.b)
        for stage in nest.after
        for load in loads(stage.value)
        for place in load.indices
        for n in nodes(place)
        if isinstance(n, tirx.FloorDiv | tirx.FloorMod) and isinstance(n.b, tirx.IntImm) and uses(n.a, stage.iters[var])
    ]
    fitting = (n for n in sorted(set(divided)) if 2 <= n <= MOST and _in_turn(nest, axis, n, 0))
    return axis, next(fitting, 1)


def _in_turn(nest: Nest, axis: Axis, rows: int, first: int | tirx.Expr, lanes: int = 0) -> list[_Read]:
    """What elements of an axis from the `first` on read of so many rows in turn; nothing if a load is of another kind.

    Of a first one that is not a number these are only as many as `lanes` for each row. The starts are in the nest's
    other loops.
    """
    reads: list[_Read] = []
    step, known = tirx.Var("step", "int64"), sym.Analyzer()
    for n, (loop, extent) in enumerate(zip(nest.loops, nest.extents, strict=True)):
        if n not in axis.loops:
            known.bind(loop, tvm.ir.Range(index(0), index(extent)))
    for stage in nest.after:
        if any(map(is_conditional, nodes(stage.value))):
            return []
        along = [stage.iters[n] for n in axis.loops]
        for load in loads(stage.value):
            form = offset(load.indices, load.source, stage.iters)
            if not any(uses(i, v) for i in load.indices for v in along) or (form and is_dense(axis.step(form))):
                continue
            starts = []
            for row in range(rows):
                count = -(-(axis.length - first - row) // rows) if isinstance(first, int) else lanes
                known.bind(step, tvm.ir.Range(index(0), index(count)), True)
                begin = index(first + row) if isinstance(first, int) else first + index(row)
                values = dict(axis.split(step * index(rows) + begin))
                loops = [(var, values.get(n, nest.loops[n])) for n, var in enumerate(stage.iters)]
                here = [known.simplify(substituted(i, loops)) for i in load.indices]
                there = [known.simplify(substituted(i, [(step, index(0))])) for i in here]
                if _follow(here, there, step, load.source, known):
                    starts.append(known.simplify(flat_place(there, load.source)))
            if len(starts) < rows or nest.argument(load.source) is None:
                return []
            reads.append(_Read(load, starts))
    return reads


def _follow(
    here: Sequence[tirx.Expr], there: Sequence[tirx.Expr], step: tirx.Var, buffer: tirx.Buffer, known: sym.Analyzer
) -> bool:
    """Whether the element at `here` is `step` elements behind that at `there`."""
    apart = [known.simplify(a - b) for a, b in zip(here, there, strict=True)]
    if all(map(is_zero, apart[:-1])):
        return is_zero(known.simplify(apart[-1] - step))
    # A Reshape may divide a row among several indices.
    return is_zero(known.simplify(flat_place(here, buffer) - flat_place(there, buffer) - step))


def shuffled(
    nest: Nest, arguments: Arguments, axis: Axis, fixed: Place, start: tirx.Expr, lanes: int, rows: int
) -> list[list[Read]]:
    """What each of the `rows` vectors from `start` of an axis reads that has to be shuffled, in registers."""
    every: list[list[Read]] = [[] for _ in range(rows)]
    if rows == 1:
        return every
    known = sym.Analyzer()
    first, step = known.simplify(tirx.floormod(start, index(rows))), index(0)
    if isinstance(first, tirx.IntImm):
        first, step = int(first), known.simplify(tirx.floordiv(start, index(rows)))
    here = loop_values(fixed, nest.loops)
    for read in _in_turn(nest, axis, rows, start if isinstance(first, tirx.Expr) else first, lanes):
        flat, places = arguments.flat(read.load.source), [substituted(place, here) + step for place in read.starts]
        dtype = dtype_of(read.load)
        registers = [emit.register(emit.vector(flat, place, lanes), lanes, dtype) for place in places]
        whole = [emit.vector(register, index(0), lanes) for register in registers]
        for part, reads_of_part in enumerate(every):
            reads_of_part.append((read.load, emit.register(interleaved(whole, lanes, part), lanes, dtype)))
    return every


def interleaved(vectors: Sequence[tirx.Expr], lanes: int, part: int) -> tirx.Expr:
    """Vector number `part` of as many as there are `vectors`, whose elements are put together one by one in turn."""
    count = len(vectors)
    numbers = range(part * lanes, (part + 1) * lanes)
    return tirx.Shuffle(list(vectors), [number % count * lanes + number // count for number in numbers])
