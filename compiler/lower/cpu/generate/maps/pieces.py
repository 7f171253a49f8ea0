"""Conditions on one loop of a map: the places at which they change, and the map between these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call

from heterocc.compiler.lower.cpu.generate.places import linear
from heterocc.compiler.lower.cpu.generate.read import Nest, Stage
from heterocc.compiler.lower.cpu.sizes import assume, assumed, at_least, moves, size_of, typical
from heterocc.compiler.lower.kernels.expressions import is_conditional, loads, nodes, outside_loads

_HOLDS: dict[type, Callable[[int], bool]] = {
    tirx.LT: lambda value: not assumed(at_least(value, 0)),
    tirx.LE: lambda value: not assumed(at_least(value, 1)),
    tirx.GT: lambda value: assumed(at_least(value, 1)),
    tirx.GE: lambda value: assumed(at_least(value, 0)),
}
"""Whether a value compares so with 0."""

_MOST_TURNS = 3
"""The limit on multiples of a divisor at which a loop is divided."""


def between(nest: Nest, number: int, begin: int, end: int) -> Nest:
    """The nest with what comparisons, limits and remainders of a loop alone are between two places of it.

    Those that change in between stay as they are.
    """

    def settled(stage: Stage) -> Stage:
        var = stage.iters[number]

        def ends(expr: tirx.Expr) -> tuple[int, int] | None:
            """The values at the first place and at the last; None if it is not linear in the loop alone."""
            form = linear(expr, [var])
            if form is None or not moves(form.steps[0]):
                return None
            return form.constant + form.steps[0] * begin, form.constant + form.steps[0] * (end - 1)

        def compared(part: tirx.Expr) -> tirx.Expr:
            bounds = ends(part.a - part.b)
            if bounds is None:
                return part
            first, last = map(_HOLDS[type(part)], bounds)
            return tirx.const(first, "bool") if first == last else part

        def limited(part: tirx.Expr) -> tirx.Expr:
            bounds = ends(part.a - part.b)
            if bounds is None:
                return part
            least = part.a, part.b
            if all(assumed(at_least(value, 0)) for value in bounds):
                least = part.b, part.a
            elif any(assumed(at_least(value, 1)) for value in bounds):
                return part
            return least[isinstance(part, tirx.Max)]

        def rest(part: tirx.FloorMod) -> tirx.Expr:
            bounds, divisor = ends(part.a), size_of(part.b)
            if bounds is None or divisor is None:
                return part
            for times in range(_MOST_TURNS):
                left = [value - times * divisor for value in bounds]
                if all(0 <= typical(value) < typical(divisor) for value in left):
                    for value in left:
                        assume(at_least(value, 0))
                        assume(at_least(divisor, value + 1))
                    return part.a - part.b * times
            return part

        def branch(call: Call) -> tirx.Expr:
            if not is_conditional(call):
                return call
            condition = known.simplify(call.args[0])
            if not isinstance(condition, tirx.IntImm):
                return call
            return call.args[1] if int(condition) else call.args[2]

        known = sym.Analyzer()
        rules = [
            *((kind, compared) for kind in _HOLDS),
            *((kind, limited) for kind in (tirx.Min, tirx.Max)),
            (tirx.FloorMod, rest),
            (Call, branch),
        ]
        return replace(stage, value=tvm_ffi.structural_map(stage.value, rules, order="post"))

    return replace(nest, after=tuple(map(settled, nest.after)))


def cuts_along(nest: Nest, number: int) -> set[int]:
    """Values of a loop at which a comparison with it alone changes, or a limit of an index takes effect."""
    cuts: set[int] = set()
    for stage in nest.after:
        var = stage.iters[number]
        places = [node for load in loads(stage.value) for place in load.indices for node in nodes(place)]
        for part in (*outside_loads(stage.value), *places):
            if not isinstance(part, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
                continue
            zero = _zero(part.a - part.b, var)
            if zero is None:
                continue
            # Inclusive comparisons change one further.
            inclusive = isinstance(part, tirx.LE | tirx.GT)
            cuts.add(zero[0] + int(inclusive == (zero[1] == 1)))
        for part in places:
            if isinstance(part, tirx.Min | tirx.Max):
                given = _operands(part)
                zeros = (_zero(a - b, var) for a in given for b in given)
                cuts |= {zero[0] for zero in zeros if zero is not None}
            elif isinstance(part, tirx.FloorMod) and (divisor := size_of(part.b)) is not None:
                cuts |= _turns(part.a, var, divisor, nest.extents[number])
    return cuts


def _turns(expr: tirx.Expr, var: tirx.Var, divisor: int, extent: int) -> set[int]:
    """Values of a loop of this extent at which an expression is a multiple of a divisor, if these are few."""
    form = linear(expr, [var])
    if form is None or form.steps[0] != 1 or not assumed(at_least(divisor * (_MOST_TURNS - 1), extent)):
        return set()
    return {times * divisor - form.constant for times in range(_MOST_TURNS)}


def _operands(expr: tirx.Expr) -> list[tirx.Expr]:
    """The operands of a tree of minima and maxima."""
    return [*_operands(expr.a), *_operands(expr.b)] if isinstance(expr, tirx.Min | tirx.Max) else [expr]


def _zero(difference: tirx.Expr, var: tirx.Var) -> tuple[int, int] | None:
    """The value of a variable at which a difference is zero, and its step, 1 or -1; None for another difference."""
    form = linear(difference, [var])
    if form is None or abs(form.steps[0]) != 1:
        return None
    return -form.constant * form.steps[0], form.steps[0]
