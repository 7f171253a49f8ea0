"""Maps that read each element of a row several times, as nearest neighbour resizing by a whole factor does.

A vector of what is read makes as many vectors of outputs as it is read times, by shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Element, kept_stages
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, flat_place, index, linear, loop_values, offset
from heterocc.compiler.lower.cpu.generate.read import Nest
from heterocc.compiler.lower.cpu.sizes import exceeds, filled
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads, substituted, uses

FEWEST_LANES = 4
MOST_TIMES = 8
"""Times that an element is read: each is a vector of outputs that is written out."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A map along whose last loop `along` the element i of `reads` is the element i // `times` of a row.

    `reads` are loads with the loop itself in place of that quotient.
    """

    outer: Axis
    along: Axis
    times: int
    reads: tuple[TensorLoad, ...]
    lanes: int


def find_repeated(nest: Nest, along: Axis, lanes: int) -> Repeated | None:
    """Read a map that is written along the axis `along` as one that repeats elements; None if it repeats none."""
    if len(along.loops) != 1:
        return None
    var = nest.loops[along.loops[0]]
    times: set[int] = set()
    reads: list[TensorLoad] = []
    for stage in nest.after:
        expr = substituted(stage.value, list(zip(stage.iters, nest.loops, strict=True)))
        for load in loads(expr):
            form = offset(load.indices, load.source, nest.loops)
            if not any(uses(i, var) for i in load.indices) or (form is not None and along.step(form) == 1):
                continue
            once = _once(load, var)
            if once is None or dtype_of(load) != "float32":
                return None
            times.add(once[1])
            if not any(tvm_ffi.structural_equal(once[0], other) for other in reads):
                reads.append(once[0])
    if len(times) != 1 or along.length % max(times) or not 2 <= max(times) <= MOST_TIMES:
        return None
    lanes = filled(lanes, along.length // max(times))
    outer = tuple(n for n, extent in enumerate(nest.extents) if extent > 1 and n not in along.loops)
    return Repeated(nest.axis(outer), along, max(times), tuple(reads), lanes) if lanes >= FEWEST_LANES else None


def _once(load: TensorLoad, var: tirx.Var) -> tuple[TensorLoad, int] | None:
    """A load that uses a variable in its last index alone, as its quotient by a number: with the variable itself there.

    Returns the load and the number, None for any other load.
    """
    factors = set()

    def quotient(division: tirx.FloorDiv) -> tirx.Expr:
        if not division.a.same_as(var) or not isinstance(division.b, tirx.IntImm):
            return division
        factors.add(int(division.b))
        return var

    def joined(division: tirx.FloorDiv) -> tirx.Expr:
        """The quotient of a quotient, as of a map that is resized twice, as one."""
        inner = division.a
        if not isinstance(inner, tirx.FloorDiv) or not all(isinstance(d.b, tirx.IntImm) for d in (inner, division)):
            return division
        return tirx.FloorDiv(inner.a, tirx.IntImm(division.b.ty.dtype, int(inner.b) * int(division.b)))

    *outer, last = load.indices
    last = tvm_ffi.structural_map(last, [(tirx.FloorDiv, joined)], order="post")
    once = tvm_ffi.structural_map(last, [(tirx.FloorDiv, quotient)], order="post")
    form = linear(once, [var])
    if len(factors) != 1 or form is None or form.steps != (1,) or any(uses(i, var) for i in outer):
        return None
    return tirx.BufferLoad(load.source, [*outer, once]), factors.pop()


def write_repeated(nest: Nest, arguments: Arguments, repeated: Repeated, kind: str) -> None:
    """Write the map row by row; `kind` is that of the loop over rows."""
    lanes, length = repeated.lanes, repeated.along.length // repeated.times
    with emit.loop(repeated.outer.length, kind) as row:
        place = nest.place(emit.split(repeated.outer, row)) if repeated.outer.loops else []
        with emit.loop(length // lanes) as number:
            _write_vectors(nest, arguments, repeated, place, number * index(lanes))
        if exceeds(length, lanes):
            _write_vectors(nest, arguments, repeated, place, index(length - lanes))


def _write_vectors(nest: Nest, arguments: Arguments, repeated: Repeated, place: Place, start: tirx.Expr) -> None:
    """The outputs of a vector of elements from `start`."""
    lanes, times = repeated.lanes, repeated.times
    read = []
    here = loop_values([*place, (repeated.along, start)], nest.loops)
    for load in repeated.reads:
        register = emit.registers(1, lanes)
        where = flat_place([substituted(i, here) for i in load.indices], load.source)
        emit.put(register, emit.vector(arguments.flat(load.source), where, lanes), index(0), lanes)
        read.append((load, register))
    for part in range(times):
        lane_of = [(part * lanes + lane) // times for lane in range(lanes)]
        values = []
        for load, register in read:
            spread = emit.registers(1, lanes)
            emit.put(spread, tirx.Shuffle([emit.vector(register, index(0), lanes)], lane_of), index(0), lanes)
            values.append((load, spread))
        kept = {n: emit.registers(1, lanes, dtype_of(s.value)) for n, s in kept_stages(nest)}
        with emit.loop(lanes, "vectorized") as lane:
            every = [*place, (repeated.along, start * index(times) + index(part * lanes) + lane)]
            known = [(load, spread[lane]) for load, spread in values]
            Element(_with_registers(nest, repeated, known), arguments, None, kept, every, lane).store()


def _with_registers(nest: Nest, repeated: Repeated, values: Sequence[tuple[TensorLoad, tirx.Expr]]) -> Nest:
    """The map with values in place of what it reads repeatedly."""
    var = nest.loops[repeated.along.loops[0]]
    stages = []
    for stage in nest.after:

        def value(load: TensorLoad) -> tirx.Expr:
            once = _once(load, var) if any(uses(i, var) for i in load.indices) else None
            if once is None:
                return load
            return next(v for known, v in values if tvm_ffi.structural_equal(once[0], known))

        expr = substituted(stage.value, list(zip(stage.iters, nest.loops, strict=True)))
        stages.append(replace(stage, iters=nest.loops, value=substituted(expr, [], value)))
    return replace(nest, after=tuple(stages))
