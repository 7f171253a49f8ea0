"""Loads of every second, third or fourth number, as in slices with a step and images with channels last.

They are shuffled from as many vectors instead of loaded one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, at, index, offset
from heterocc.compiler.lower.cpu.generate.read import Nest, Stage
from heterocc.compiler.lower.cpu.sizes import is_number
from heterocc.compiler.lower.kernels.expressions import dtype_of, is_conditional, loads, nodes, substituted

FEWEST_LANES = 4
"""The shortest vectors for which this pays."""

MOST_APART = 4
"""The largest distance of numbers: of so many vectors one is made."""


def spaced(nest: Nest, arguments: Arguments, axis: Axis, place: Place, lanes: int) -> Callable[[tirx.Expr], Nest]:
    """Load the numbers of the vector that begins at `place` that are apart in memory; the result reads those of a lane.

    Stages with a condition stay as they are: they may not read at all places.
    """
    held: list[tuple[TensorLoad, tirx.Buffer]] = []
    for stage in nest.after if lanes >= FEWEST_LANES else ():
        if any(map(is_conditional, nodes(stage.value))):
            continue
        for load in loads(stage.value):
            known = nest.argument(load.source) is not None and dtype_of(load) == "float32"
            form = offset(load.indices, load.source, stage.iters) if known else None
            apart = axis.step(form) if form is not None else None
            if form is None or apart is None or not is_number(apart) or not 2 <= apart <= MOST_APART:
                continue
            where = at(form, place)
            assert where is not None
            register = emit.registers(1, lanes)
            emit.put(register, _every(apart, arguments.flat(load.source), where, lanes), index(0), lanes)
            held.append((load, register))

    def at_lane(lane: tirx.Expr) -> Nest:
        def read(load: TensorLoad) -> tirx.Expr:
            return next((register[lane] for old, register in held if old.same_as(load)), load)

        def changed(stage: Stage) -> Stage:
            return replace(stage, value=substituted(stage.value, [], read))

        return replace(nest, after=tuple(map(changed, nest.after))) if held else nest

    return at_lane


def _every(apart: int, flat: tirx.Buffer, start: tirx.Expr, lanes: int) -> tirx.Expr:
    """Numbers from `start`, each `apart` from the next. The last vector that is read ends with the last of them."""
    begins = [*(n * lanes for n in range(apart - 1)), (apart - 1) * (lanes - 1)]
    wanted = (lane * apart for lane in range(lanes))
    numbers = [place if place < begins[-1] else place - begins[-1] + (apart - 1) * lanes for place in wanted]
    return tirx.Shuffle([emit.vector(flat, start + index(begin), lanes) for begin in begins], numbers)
