"""Expressions of a kernel that reduces rows, for one element of one row."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, sym, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.reduction.row_form import Axes, Rows
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads, substituted, uses

_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


def at_element(
    expr: tirx.Expr,
    axes: Axes,
    row: Sequence[tirx.Expr],
    element: tirx.Expr,
    results: Sequence[tuple[tirx.Buffer, tirx.Expr]],
) -> tirx.Expr:
    """An expression of a block's iterators for one row (by axes) and element; loads of `results` are replaced."""
    values = list(zip(axes.row, row, strict=True))
    values += zip(axes.element, nest.split_index(element, axes.extents), strict=True)
    values += ((unit, nest.index(0)) for unit in axes.units)

    def load(node: TensorLoad) -> tirx.Expr:
        return next((value for buffer, value in results if buffer.same_as(node.source)), node)

    return substituted(expr, [(old, new.astype(dtype_of(old))) for old, new in values], load)


def hoisted(expr: tirx.Expr, axes: Axes) -> tuple[tirx.Expr, list[tuple[tirx.Var, tirx.Expr]]]:
    """The expression with variables for the subexpressions that are constant in a row, and these subexpressions."""
    parts: list[tuple[tirx.Var, tirx.Expr]] = []

    def visit(node: tirx.Expr) -> tirx.Expr:
        if isinstance(node, tirx.Var | tirx.IntImm | tirx.FloatImm):
            return node
        if not any(uses(node, v) for v in axes.element):
            name = tirx.Var(f"same{len(parts)}", dtype_of(node))
            parts.append((name, node))
            return name
        if isinstance(node, _BINARY):
            return type(node)(visit(node.a), visit(node.b))
        if isinstance(node, tirx.Cast):
            return tirx.Cast(node.ty, visit(node.value))
        if isinstance(node, ir.Call) and getattr(node.op, "name", "") != "prim.if_then_else":
            return ir.Call(node.op, [visit(a) for a in node.args], node.attrs, ret_ty=node.ty)
        return node

    return visit(expr), parts


def assign(values: Sequence[tirx.Expr], targets: Sequence[tuple[tirx.Buffer, list[tirx.Expr]]]) -> tirx.Stmt:
    """Store all values, after all have been computed."""
    if len(values) == 1:
        return tirx.BufferStore(targets[0][0], values[0], targets[0][1])
    names = [tirx.Var(f"next{i}", dtype_of(v)) for i, v in enumerate(values)]
    steps = [tirx.Bind(n, v) for n, v in zip(names, values, strict=True)]
    return nest.sequence(
        [*steps, *(tirx.BufferStore(b, n, place) for (b, place), n in zip(targets, names, strict=True))]
    )


def steps(rows: Rows, across: bool) -> frozenset[int | None]:
    """The strides, in elements, of the tensors that are read and written: along a row, or `across` rows.

    None means a stride that is not constant. Neighbours across rows differ by one in the rows' last axis.
    """
    element, place = tirx.Var("element", "int64"), tirx.Var("row", "int64")
    found: set[int | None] = set()
    results = {buffer for r in rows.reductions for buffer, _ in r.accumulator.targets}
    parts: list[tuple[Axes, Sequence[tirx.Expr], Sequence[tirx.BufferStore]]] = []
    parts += [(r.axes, r.accumulator.terms, ()) for r in rows.reductions]
    parts += [(o.axes, (o.store.value,), (o.store,)) for o in rows.outputs if o.axes.length > 1]
    for axes, exprs, stores in parts:
        reads = [(load.source, load.indices) for expr in exprs for load in loads(expr)]
        for source, indices in [*reads, *((s.buffer, s.indices) for s in stores)]:
            if source in results:
                continue
            fixed = [nest.index(0)] * (len(rows.extents) - 1)
            row = [*fixed, place] if rows.extents else []
            flat = nest.index(0)
            for index, size in zip(indices, source.shape, strict=True):
                flat = flat * size + at_element(index, axes, row, element, ())
            moving = place if across else element
            found.add(_step(flat, moving))
    return frozenset(found)


def _step(flat: tirx.Expr, moving: tirx.Var) -> int | None:
    after = substituted(flat, [(moving, moving + nest.index(1))])
    difference = sym.Analyzer().simplify(after - flat)
    return int(difference) if isinstance(difference, tirx.IntImm) else None
