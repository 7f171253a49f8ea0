"""Loads of every second number, as in slices with step 2, from two vectors and a shuffle instead of one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.blocks import dtype_of, is_conditional, loads, nodes
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, at, index, offset, substituted
from heterocc.compiler.lower.cpu.generate.read import Nest, Stage

FEWEST_LANES = 4
"""The shortest vectors for which this pays."""


def every_second(nest: Nest, arguments: Arguments, axis: Axis, place: Place, lanes: int) -> Callable[[tirx.Expr], Nest]:
    """Load every second number for the vector that begins at `place`; the result reads those of a lane.

    Stages with a condition stay as they are: they may not read at all places.
    """
    held: list[tuple[TensorLoad, tirx.Buffer]] = []
    for stage in nest.after if lanes >= FEWEST_LANES else ():
        if any(map(is_conditional, nodes(stage.value))):
            continue
        for load in loads(stage.value):
            known = nest.argument(load.source) is not None and dtype_of(load) == "float32"
            form = offset(load.indices, load.source, stage.iters) if known else None
            if form is None or axis.step(form) != 2:
                continue
            where = at(form, place)
            assert where is not None
            register = emit.registers(1, lanes)
            emit.put(register, _seconds(arguments.flat(load.source), where, lanes), index(0), lanes)
            held.append((load, register))

    def at_lane(lane: tirx.Expr) -> Nest:
        def read(load: TensorLoad) -> tirx.Expr:
            return next((register[lane] for old, register in held if old.same_as(load)), load)

        def changed(stage: Stage) -> Stage:
            return replace(stage, value=substituted(stage.value, [], read))

        return replace(nest, after=tuple(map(changed, nest.after))) if held else nest

    return at_lane


def _seconds(flat: tirx.Buffer, start: tirx.Expr, lanes: int) -> tirx.Expr:
    """Every second number from `start`. The second vector ends with the last one, so that no number beyond is read."""
    halves = [emit.vector(flat, start + index(begin), lanes) for begin in (0, lanes - 1)]
    return tirx.Shuffle(halves, [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)])
