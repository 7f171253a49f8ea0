"""Conditions on one loop of a map: the places at which they change, and the map between these."""

from __future__ import annotations

from dataclasses import replace

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call

from heterocc.compiler.lower.cpu.blocks import is_conditional, loads, nodes, outside_loads
from heterocc.compiler.lower.cpu.generate.places import index, linear, substituted
from heterocc.compiler.lower.cpu.generate.read import Nest, Stage


def bare(stage: Stage, nest: Nest) -> list[tirx.Expr]:
    """What a stage computes, apart from what it reads, in the nest's loops."""
    return list(outside_loads(substituted(stage.value, list(zip(stage.iters, nest.loops, strict=True)))))


def with_value(nest: Nest, number: int, place: int) -> Nest:
    """The nest with the values that comparisons with a loop alone have at a place of it."""
    known = sym.Analyzer()

    def replaced(stage: Stage) -> Stage:
        var = stage.iters[number]

        def value(part: tirx.Expr) -> tirx.Expr:
            if _zero(part.a - part.b, var) is None:
                return part
            return known.simplify(substituted(part, [(var, index(place))]))

        def branch(call: Call) -> tirx.Expr:
            if not is_conditional(call) or not isinstance(call.args[0], tirx.IntImm):
                return call
            return call.args[1] if int(call.args[0]) else call.args[2]

        kinds = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
        rules = [*((kind, value) for kind in kinds), (Call, branch)]
        return replace(stage, value=tvm_ffi.structural_map(stage.value, rules, order="post"))

    return replace(nest, after=tuple(map(replaced, nest.after)))


def cuts_along(nest: Nest, number: int) -> set[int]:
    """Values of a loop at which a comparison with it alone changes, or a limit of an index takes effect."""
    found: set[int] = set()
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
            found.add(zero[0] + int(inclusive == (zero[1] == 1)))
        for part in places:
            if isinstance(part, tirx.Min | tirx.Max):
                given = _operands(part)
                zeros = (_zero(a - b, var) for a in given for b in given if isinstance(b, tirx.IntImm))
                found |= {zero[0] for zero in zeros if zero is not None}
    return found


def _operands(expr: tirx.Expr) -> list[tirx.Expr]:
    """The operands of a tree of minima and maxima."""
    return [*_operands(expr.a), *_operands(expr.b)] if isinstance(expr, tirx.Min | tirx.Max) else [expr]


def _zero(difference: tirx.Expr, var: tirx.Var) -> tuple[int, int] | None:
    """The value of a variable at which a difference is zero, and its step, 1 or -1; None for another difference."""
    form = linear(difference, [var])
    if form is None or abs(form.steps[0]) != 1:
        return None
    return -form.constant * form.steps[0], form.steps[0]
