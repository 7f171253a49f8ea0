"""The share of a reduction's rows that a work item gets on devices that run work items one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm import ir, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.gpu.reduction.row_code import hoisted, steps
from heterocc.compiler.lower.gpu.reduction.row_form import Rows
from heterocc.compiler.lower.gpu.reduction.teams import CORES, parts_for_cores
from heterocc.compiler.lower.kernels.expressions import dtype_of

LANES = (16, 8, 4)
"""The widths of vectors, best first."""

REGISTERS = 8
"""The number of accumulators in an unrolled reduction."""

ITEM_TERMS = 1 << 12
"""The terms that a work item should have for its start to be worthwhile; it reduces several short rows."""

_VECTOR_CALLS = frozenset(f"tirx.{name}" for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "fabs", "erf", "pow"))
_VECTOR_NODES = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of an item: `count` neighbours in a row, or neighbouring rows, in a vector or unrolled."""

    count: int
    along: Literal["row", "rows"]
    vector: bool = True


@dataclass(frozen=True, slots=True)
class Share:
    """The work of an item: bundles of `lanes`, `bundles` of them in turn, or 1/`parts` of a bundle."""

    lanes: Lanes
    bundles: int
    parts: int


def share_of(rows: Rows) -> Share:
    """The share that suits the kernel."""
    lanes = lanes_of(rows)
    together = lanes.count if lanes.along == "rows" else 1
    count = -(-rows.count // together)
    parts = parts_for_cores(rows, count)
    bundles = max(1, min(ITEM_TERMS // (rows.length * together), count // (4 * CORES)))
    return Share(lanes, bundles, parts)


def lanes_of(rows: Rows) -> Lanes:
    """The lanes that suit the kernel."""
    parts = [(e, r.axes) for r in rows.reductions for e in r.accumulator.terms]
    parts += [(o.store.value, o.axes) for o in rows.outputs]
    shortest = min(axes.length for _, axes in parts if axes.length > 1 or rows.length == 1)
    beside = bool(rows.extents) and steps(rows, across=True) <= {0, 1}
    if steps(rows, across=False) <= {0, 1}:
        if all(vectorizable(hoisted(e, axes)[0]) for e, axes in parts):
            return Lanes(next((n for n in LANES if n <= shortest), 1), "row")
        return _written_out(rows, shortest)
    if beside:
        if all(vectorizable(e) for e, _ in parts):
            return Lanes(next((n for n in LANES if n <= rows.extents[-1]), 1), "rows")
        return Lanes(REGISTERS if rows.extents[-1] >= REGISTERS else 1, "rows", vector=False)
    return _written_out(rows, shortest)


def _written_out(rows: Rows, shortest: int) -> Lanes:
    """The lanes of an unrolled reduction. Only one for integer sums, which compilers vectorise by themselves."""
    accumulators = [r.accumulator for r in rows.reductions]
    ordered = any(len(a.dtypes) > 1 or a.dtypes[0].startswith("float") for a in accumulators)
    return Lanes(REGISTERS if ordered and shortest >= REGISTERS else 1, "row", vector=False)


def vectorizable(expr: tirx.Expr) -> bool:
    """Whether an expression is float32 arithmetic with only operations that vectors support."""
    if dtype_of(expr) != "float32":
        return False
    if isinstance(expr, TensorLoad | tirx.FloatImm | tirx.Var):
        return True
    if isinstance(expr, _VECTOR_NODES):
        return vectorizable(expr.a) and vectorizable(expr.b)
    if isinstance(expr, tirx.Cast):
        return vectorizable(expr.value)
    if isinstance(expr, ir.Call):
        return getattr(expr.op, "name", "") in _VECTOR_CALLS and all(vectorizable(a) for a in expr.args)
    return False
