"""Fusion of neighbouring kernels of rows: parts of a normalisation, masks before it, activations after it."""

from __future__ import annotations

from math import prod

from tvm import tirx

from heterocc.compiler.lower.cpu.generate.maps.maps import read_map
from heterocc.compiler.lower.cpu.generate.rows.rows import vector_axis
from heterocc.compiler.lower.cpu.generate.rows.stages import Rows, RowStage, read_rows
from heterocc.compiler.lower.cpu.sizes import assuming, attempt, dims_of, typical
from heterocc.compiler.lower.kernels.expressions import loads, uses
from heterocc.compiler.lower.relax.kernels import KernelModule
from heterocc.compiler.lower.relax.merge import merge_rows

SHARED_ROWS, LONG_ROW = 8, 1 << 15
"""Limits for fusion: few long rows stay separate kernels, because a fused one divides only whole rows among threads."""


def joined_rows(module: KernelModule) -> KernelModule:
    """The module with neighbouring kernels of the same rows fused."""
    return merge_rows(module, _joins, leads=_leads)


def _leads(function: tirx.PrimFunc) -> bool:
    """Whether a kernel may be fused with one of rows after it."""
    with assuming(dims_of(function)):
        return attempt(lambda: read_map(function)) is not None


def _joins(function: tirx.PrimFunc) -> bool:
    """Whether a kernel of rows may be fused with its neighbours: not a product, a window or of long rows."""
    with assuming(dims_of(function)):
        return bool(attempt(lambda: _joins_rows(function)))


def _joins_rows(function: tirx.PrimFunc) -> bool:
    rows = read_rows(function)
    if rows is None or vector_axis(rows) is None:
        return False
    if any(_multiplies(rows, s) or _slides(rows, s) for s in rows.stages if s.combined is not None):
        return False
    length, count = (prod(typical(rows.extents[n]) for n in numbers) for numbers in (rows.terms, rows.places))
    return count >= SHARED_ROWS or length <= LONG_ROW


def _multiplies(rows: Rows, stage: RowStage) -> bool:
    """Whether terms combine values with different dependences on the row, as in a product."""
    along = set()
    for load in loads(stage.value):
        number = rows.number(load.source)
        used = {n for n, v in enumerate(rows.loops) if any(uses(i, v) for i in load.indices)}
        loops = frozenset(used) if number is None else rows.stages[number].loops
        if loops & set(rows.terms):
            along.add(loops & set(rows.places))
    return len(along) > 1


def _slides(rows: Rows, stage: RowStage) -> bool:
    """Whether the rows are overlapping windows of the input, as in pooling."""
    indices = [i for load in loads(stage.value) for i in load.indices]
    kinds = [{rows.kinds[n] for n, v in enumerate(rows.loops) if uses(i, v)} for i in indices]
    return any(len(kind) > 1 for kind in kinds)
