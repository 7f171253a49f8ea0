"""Conditions on one loop of a map: the places at which they change, and the map between these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call

from heterocc.compiler.lower.cpu.generate.places import linear
from heterocc.compiler.lower.cpu.generate.read import Nest, Stage
from heterocc.compiler.lower.cpu.sizes import Size, assumed, at_least, is_number, moves
from heterocc.compiler.lower.kernels.expressions import is_conditional, loads, nodes, outside_loads

_HOLDS: dict[type, Callable[[Size], bool]] = {
    tirx.LT: lambda value: not assumed(at_least(value, 0)),
    tirx.LE: lambda value: not assumed(at_least(value, 1)),
    tirx.GT: lambda value: assumed(at_least(value, 1)),
    tirx.GE: lambda value: assumed(at_least(value, 0)),
}
"""Whether a value compares so with 0."""


def between(nest: Nest, number: int, begin: Size, end: Size) -> Nest:
    """The nest with what comparisons and limits of a loop alone are between two places of it.

    Those that change in between stay as they are.
    """

    def settled(stage: Stage) -> Stage:
        var = stage.iters[number]

        def ends(expr: tirx.Expr) -> tuple[Size, Size] | None:
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
            (Call, branch),
        ]
        return replace(stage, value=tvm_ffi.structural_map(stage.value, rules, order="post"))

    return replace(nest, after=tuple(map(settled, nest.after)))


def cuts_along(nest: Nest, number: int) -> set[Size]:
    """Values of a loop at which a comparison with it alone changes, or a limit of an index takes effect."""
    cuts: set[Size] = set()
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
    return cuts


def _operands(expr: tirx.Expr) -> list[tirx.Expr]:
    """The operands of a tree of minima and maxima."""
    return [*_operands(expr.a), *_operands(expr.b)] if isinstance(expr, tirx.Min | tirx.Max) else [expr]


def _zero(difference: tirx.Expr, var: tirx.Var) -> tuple[Size, int] | None:
    """The value of a variable at which a difference is zero, and its step, 1 or -1; None for another difference."""
    form = linear(difference, [var])
    step = 0 if form is None else form.steps[0]
    if form is None or not is_number(step) or abs(step) != 1:
        return None
    return -form.constant * step, step
