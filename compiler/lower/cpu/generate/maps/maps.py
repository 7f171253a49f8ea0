"""Generation of kernels without sums: each element of the outputs is computed from elements of the inputs, in vectors.

The last loops are combined to one axis if all reads have a constant stride along it. An axis that a condition divides
(padding, concatenation) is processed in pieces within which the condition is constant. A last vector that would exceed
the end of an axis starts earlier and overlaps the previous one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from tvm import tirx

from heterocc.compiler.lower.cpu.blocks import read_blocks
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Element, kept_registers
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.linear_reads import with_linear_reads
from heterocc.compiler.lower.cpu.generate.maps.pieces import between, cuts_along
from heterocc.compiler.lower.cpu.generate.maps.shuffles import FEWEST_LANES, rows_in_turn, shuffled
from heterocc.compiler.lower.cpu.generate.maps.transposes import find_transposed, write_transposed
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, index, offset
from heterocc.compiler.lower.cpu.generate.read import Nest, Stage, is_constant
from heterocc.compiler.lower.cpu.generate.spans import in_vectors, share_vectors
from heterocc.compiler.lower.cpu.sizes import (
    Size,
    all_equal,
    assume,
    assumed,
    at_least,
    filled,
    is_number,
    is_one,
    smaller,
    typical,
)
from heterocc.compiler.lower.kernels.expressions import (
    dtype_of,
    is_function,
    is_iters,
    itemsize,
    loads,
    nodes,
    outside_loads,
    substituted,
    uses,
)

PARALLEL_ELEMENTS = 1 << 16
"""The smallest number of elements that is divided among threads. A function of an element counts as `FUNCTION` more, an
index that is read from a table, as resizing does, as one."""

FUNCTION = 8
TASKS = 16
"""The smallest number of pieces of a long axis, if there are no other loops to divide among threads."""

MOST_PIECES = 8
"""The limit on pieces of an axis, because each has separate code."""

_VECTOR_TYPES = ("float32", "float64", "int32", "int64", "int8", "uint8")
"""Types that TVM stores in vectors element by element; it stores booleans bitwise."""


def generate_map(function: tirx.PrimFunc, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written in vectors; None for a kernel with sums, or of types without vectors.

    A kernel with a condition that changes within a vector stays as it is.
    """
    nest = read_map(function)
    if nest is None or not _has_vectors(nest):
        return None
    if _alternates(nest, isa.lanes):
        return function, ()
    writer = _Writer(nest, isa)
    return emit.written(nest, {}, writer.write), ()


def read_map(function: tirx.PrimFunc) -> Nest | None:
    """Read a kernel without sums; None if it has one, or outputs of different shapes."""
    blocks = read_blocks(function)
    if not blocks or not all(is_constant(p) for p in function.params):
        return None
    # A scalar has no index, but a loop that runs once.
    iters = [b.iters if b.store.indices else [] for b in blocks]
    if not iters[-1] or any(
        b.is_reduction or not is_iters(b.store.indices, i) for b, i in zip(blocks, iters, strict=True)
    ):
        return None
    stages = [Stage(b.store.buffer, tuple(i), b.store.value) for b, i in zip(blocks, iters, strict=True)]
    last = blocks[-1]
    alike = (n for n, i in enumerate(iters) if len(i) == len(iters[-1]))
    together = {n for n in alike if all_equal(blocks[n].extents, last.extents)}
    # Conditions are computed where they are used: TVM stores booleans in vectors bitwise.
    given = {n for n, s in enumerate(stages) if any(p.same_as(s.buffer) for p in function.params)}
    together -= {n for n in together - given if dtype_of(stages[n].value) == "bool"}
    while moved := {n for n in together if _read_elsewhere(n, stages, together)}:
        together -= moved
    before = tuple(s for n, s in enumerate(stages) if n not in together)
    nest = Nest(
        function=function, loops=tuple(last.iters), kinds=last.kinds, extents=last.extents, before=before, after=()
    )
    if any(nest.argument(s.buffer) is not None for s in before):
        return None
    values = {n: with_linear_reads(nest.inlined(stages[n].value), stages[n].iters, nest) for n in sorted(together)}
    return replace(nest, before=(), after=tuple(replace(stages[n], value=value) for n, value in values.items()))


def _read_elsewhere(number: int, stages: Sequence[Stage], together: set[int]) -> bool:
    """Whether a stage is read at places other than its reader's, directly or through another stage."""
    for other, reader in enumerate(stages):
        for load in loads(reader.value):
            if load.source.same_as(stages[number].buffer) and not (
                other in together and is_iters(load.indices, list(reader.iters))
            ):
                return True
    return False


def _has_vectors(nest: Nest) -> bool:
    given = [s.value for s in nest.after]
    read = [load for s in nest.after for load in loads(s.value)]
    if not all(dtype_of(e) in _VECTOR_TYPES for e in (*given, *read)):
        return False
    calls = [n for s in nest.after for n in outside_loads(s.value) if is_function(n)]
    return all(dtype_of(call) == "float32" for call in calls)


def _alternates(nest: Nest, lanes: int) -> bool:
    """Whether a condition changes periodically within a vector.

    TVM writes such a vector as a loop, which LLVM unrolls and joins to masked loads of wrong elements (AVX-512). It
    does not for the loops of an unscheduled kernel.
    """
    return any(
        isinstance(node, tirx.FloorMod) and isinstance(node.b, tirx.IntImm) and int(node.b) <= lanes
        for stage in nest.after
        for part in outside_loads(stage.value)
        if isinstance(part, tirx.LT | tirx.LE | tirx.GT | tirx.GE | tirx.EQ | tirx.NE)
        for node in nodes(part)
    )


def _types(value: tirx.Expr) -> list[str]:
    """The types of a value, of what it reads, and of the values in between."""
    casts = [n for n in outside_loads(value) if isinstance(n, tirx.Cast)]
    return [dtype_of(e) for e in (value, *loads(value), *casts)]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The order of a nest: `outer` loops, then `axis` in the pieces between `cuts`.

    `nests` are the nest in each piece, if conditions are replaced by their values there.
    """

    outer: Axis
    axis: Axis
    cuts: tuple[Size, ...]
    nests: tuple[Nest, ...] = ()


def _shape(nest: Nest) -> _Shape | None:
    """The longest axis of last loops with constant strides, and the places along it at which conditions change."""
    forms = []
    plain = [True] * len(nest.loops)
    for stage in nest.after:
        values = list(zip(stage.iters, nest.loops, strict=True))
        expr = substituted(stage.value, values)
        for load in loads(expr):
            form = offset(load.indices, load.source, nest.loops)
            if form is None:
                used = {n for n, v in enumerate(nest.loops) for i in load.indices if uses(i, v)}
                plain = [p and n not in used for n, p in enumerate(plain)]
            else:
                forms.append(form)
        for part in outside_loads(expr):
            plain = [p and not v.same_as(part) for p, v in zip(plain, nest.loops, strict=True)]
    numbers = [n for n, extent in enumerate(nest.extents) if not is_one(extent)] or [len(nest.loops) - 1]
    first = len(numbers) - 1
    while first and plain[numbers[first]] and plain[numbers[first - 1]]:
        first -= 1
    axis = nest.last_run(numbers[first:], forms)
    cuts: tuple[Size, ...] = (0, axis.length)
    if len(axis.loops) == 1 and not plain[axis.loops[0]]:
        places = cuts_along(nest, axis.loops[0])
        inside = (c for c in places if assumed(at_least(c, 1)) and assumed(at_least(axis.length, c + 1)))
        cuts = (0, *sorted(inside, key=typical), axis.length)
        for place, further in pairwise(cuts[1:-1]):
            assume(at_least(further, place + 1))
    if len(cuts) > MOST_PIECES + 1:
        return None
    nests = tuple(between(nest, axis.loops[0], *piece) for piece in pairwise(cuts)) if len(cuts) > 2 else ()
    return _Shape(nest.axis(numbers[: len(numbers) - len(axis.loops)]), axis, cuts, nests)


class _Writer:
    """Writes a map: the outer loops shared by the threads, the axis in vectors."""

    def __init__(self, nest: Nest, isa: Isa) -> None:
        self.nest, self.isa = nest, isa
        size = max(itemsize(dtype) for s in nest.after for dtype in _types(s.value))
        gathered = sum(bool(loads(i)) for s in nest.after for load in loads(s.value) for i in load.indices)
        # Processors have no vectors of bytes at places from a table.
        self.lanes = 1 if gathered and size == 1 else max(1, isa.lanes * 4 // size)
        shape = _shape(nest)
        self.shape = shape or _Shape(
            nest.axis(range(len(nest.loops) - 1)), nest.axis([len(nest.loops) - 1]), (0, nest.extents[-1])
        )
        self.rows = 1
        """Rows that elements of the axis are read from in turn: vectors are written for all of these together."""
        if len(self.shape.cuts) == 2:
            axis, self.rows = rows_in_turn(nest, self.shape.outer, self.shape.axis)
            outer = nest.axis([n for n in self.shape.outer.loops if n not in axis.loops])
            self.shape = _Shape(outer, axis, (0, axis.length))
        functions = sum(is_function(n) for s in nest.after for n in outside_loads(s.value))
        self.wide = self.lanes * self.rows * (emit.TOGETHER if functions and self.rows == 1 else 1)
        """The numbers of an axis of fixed length that are computed together."""
        self.work = math.prod(nest.extents) * (1 + FUNCTION * functions + gathered)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        outer, axis, cuts = self.shape.outer, self.shape.axis, self.shape.cuts
        kind = "parallel" if typical(self.work) >= PARALLEL_ELEMENTS else "serial"
        transposed = find_transposed(self.nest, axis, self.lanes) if len(cuts) == 2 else None
        if transposed is not None:
            write_transposed(self.nest, arguments, transposed, kind)
            return
        if len(cuts) == 2 and self.rows == 1:
            self._share(arguments, kind)
            return
        with emit.loop(outer.length, kind) as task:
            fixed = self.nest.place(emit.split(outer, task))
            nests = self.shape.nests or (self.nest,) * (len(cuts) - 1)
            for (begin, end), nest in zip(pairwise(cuts), nests, strict=True):

                def vector(place: tirx.Expr, size: int, begin: Size = begin, nest: Nest = nest) -> None:
                    self._vector(arguments, fixed, index(begin) + place, size, nest)

                in_vectors(end - begin, self._lanes(end - begin), vector, few=self.rows == 1)

    def _share(self, arguments: Arguments, kind: str) -> None:
        """An axis in one piece, in parts of about the same number of vectors if there are few outer loops to share."""
        outer, axis = self.shape.outer, self.shape.axis
        vectors = -(-axis.length // self._lanes(axis.length))
        parts = smaller(TASKS, vectors) if kind == "parallel" and typical(outer.length) < TASKS else 1
        if is_number(vectors) and is_number(parts):
            parts = -(-vectors // -(-vectors // parts))  # of equal size
        with emit.loop(outer.length * parts, kind) as task:
            number, part = emit.unpacked(task, (outer.length, parts))
            # The number of a plane, not divided by that of channels, is its place in memory.
            fixed = [(outer, number)] if self._is_linear(outer) else self.nest.place(emit.split(outer, number))
            lanes = self._lanes(axis.length)
            share_vectors(axis.length, lanes, emit.Part(part, parts), partial(self._vector, arguments, fixed))

    def _lanes(self, size: Size) -> int:
        """The numbers that are written together of `size` on the axis."""
        return filled(self.wide, size) if is_number(size) else self.rows * self.lanes

    def _is_linear(self, axis: Axis) -> bool:
        """Whether all that is read has a constant stride along an axis."""
        reads = ((stage, load) for stage in self.nest.after for load in loads(stage.value))
        forms = [offset(load.indices, load.source, stage.iters) for stage, load in reads]
        return all(form is not None and axis.step(form) is not None for form in forms)

    def _vector(
        self,
        arguments: Arguments,
        fixed: list[tuple[Axis, tirx.Expr]],
        start: tirx.Expr,
        size: int,
        nest: Nest | None = None,
    ) -> None:
        """`size` elements of the axis from `start`: a vector, or one for each of several rows in turn.

        Their values are those of a nest that may differ from the map's.
        """
        nest, axis = nest or self.nest, self.shape.axis
        rows = self.rows if size % self.rows == 0 and size // self.rows >= FEWEST_LANES else 1
        lanes = size // rows
        for part, read in enumerate(shuffled(nest, arguments, axis, fixed, start, lanes, rows)):
            kept = kept_registers(nest, lanes)
            with emit.loop(lanes, "vectorized") as lane:
                place = [*fixed, (axis, start + index(part * lanes) + lane)]
                Element(nest, arguments, None, kept, place, lane, read).store()
