"""Kernels for sizes that are known only at run time: generated code under the assumptions that it makes, else loops."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tvm import s_tir, tirx

from heterocc.compiler.lower.cpu.blocks import leaf_blocks
from heterocc.compiler.lower.cpu.bound_sizes import with_bound_sizes
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.generate import Packings, generate
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.sizes import Assumptions, assuming, dims_of

_REDUCTION = 2


def sized_kernel(function: tirx.PrimFunc, weights: Collection[int], isa: Isa) -> tuple[tirx.PrimFunc, Packings]:
    """A kernel whose sizes are expressions of variables: the kernel, and the packings of its weights.

    Sizes that do not meet the assumptions of the generated code, such as rows shorter than a vector, run in plain
    loops. If weights are packed, they run in generated code of narrower vectors, down to single numbers, so that all
    read the same weights.
    """
    plain = in_parallel(function)
    with assuming(dims_of(function)) as found:
        done = generate(function, weights, isa)
    if done is None or done[0].same_as(function):
        return plain, ()
    code, packings = with_bound_sizes(done[0]), done[1]
    if not found.conditions:
        return code, packings
    if not packings:
        return emit.guarded(code, found.conditions, plain), ()
    tall = max((run.size for p in packings if isinstance(p, Panels) for run in p.runs), default=None)
    kernel = None
    for lanes in reversed(_narrower(isa.lanes)):
        with assuming(dims_of(function)) as narrow:
            other = generate(function, weights, replace(isa, lanes=lanes, tall=tall))
        if other is None or [p.key for p in other[1]] != [p.key for p in packings]:
            other = None
        if kernel is None:
            if other is None or narrow.conditions:
                return plain, ()
            kernel = with_bound_sizes(other[0])
        elif other is not None and narrow.conditions:
            kernel = emit.guarded(with_bound_sizes(other[0]), narrow.conditions, kernel)
    return emit.guarded(code, found.conditions, kernel), packings


def _narrower(lanes: int) -> list[int]:
    """The vectors for sizes that do not fill one of `lanes`, the widest first; the last is a single number."""
    return [n for n in (8, 4) if n < lanes] + [1]


def has_sizes(function: tirx.PrimFunc) -> bool:
    """Whether sizes of a kernel are known only at run time."""
    return bool(Assumptions(dims_of(function)))


def in_parallel(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel in plain loops, of which the outermost of each block are divided among threads."""
    sch = s_tir.Schedule(function, debug_mask="none")
    for rv in leaf_blocks(sch):
        kinds = [int(i.iter_type) for i in sch.get(rv).iter_vars]
        loops = list(sch.get_loops(rv))
        if len(loops) != len(kinds) or not all(int(sch.get(loop).kind) == 0 for loop in loops):
            continue
        spatial = next((n for n, kind in enumerate(kinds) if kind == _REDUCTION), len(kinds))
        outer = loops[: spatial if spatial < len(kinds) else max(spatial - 1, 0)]
        if outer:
            sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])
    return sch.mod["main"].with_attr("global_symbol", function.attrs["global_symbol"])
