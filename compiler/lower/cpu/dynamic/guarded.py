"""Kernels for sizes that are known only at run time: generated code under the assumptions that it makes, else loops."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from heterocc.compiler.lower.cpu.assumptions import Assumptions
from heterocc.compiler.lower.cpu.blocks import leaf_blocks
from heterocc.compiler.lower.cpu.bound_sizes import with_bound_sizes
from heterocc.compiler.lower.cpu.extremes import without_hidden_numbers
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Done, Packing
from heterocc.compiler.lower.cpu.generate.generate import generate
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.read import read_kernel
from heterocc.compiler.lower.cpu.sizes import assuming, attempt, dims_of
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads
from heterocc.compiler.lower.kernels.quotients import truncating
from heterocc.compiler.lower.variables import can_be_empty

_REDUCTION = 2


def sized_kernel(function: tirx.PrimFunc, weights: Collection[int], isa: Isa) -> Done:
    """A kernel whose sizes are expressions of variables: the kernel, and the packings of its weights.

    Sizes that do not meet the assumptions of the generated code, such as rows shorter than a vector, run in plain
    loops; sums of products, such as depthwise convolutions, in generated code of narrower vectors if that fits. If
    weights are packed, this goes down to single numbers, so that all read the same weights.
    """
    with assuming(dims_of(function)) as assumptions:
        done = generate(function, weights, isa)
    if done is None or done[0].same_as(function):
        return in_parallel(function), ()
    code, packings = bound_code(done[0]), done[1]
    if not assumptions.guards:
        return code, packings
    plain = in_parallel(function)
    if not packings:
        with assuming(dims_of(function)):
            sums = attempt(lambda: read_kernel(function, weights)) is not None
        slow = (_narrower_code(function, weights, isa, (), plain) or plain) if sums else plain
        return emit.guarded(code, assumptions.guards, slow), ()
    if any(dtype_of(function.params[p.argument]) == "int8" for p in packings):
        return plain, ()  # sums of integers have no form for single numbers
    other = _narrower_code(function, weights, isa, packings)
    return (plain, ()) if other is None else (emit.guarded(code, assumptions.guards, other), packings)


def bound_code(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Generated code whose divisions truncate and whose sizes are computed once."""
    return with_bound_sizes(truncating(function))


def _narrower_code(
    function: tirx.PrimFunc,
    weights: Collection[int],
    isa: Isa,
    packings: tuple[Packing, ...],
    kernel: tirx.PrimFunc | None = None,
) -> tirx.PrimFunc | None:
    """The kernel in the widest vectors below those of `isa` that its sizes fill, None if some sizes have no code.

    All read the weights as `packings` order them. `kernel` is code for sizes that fill no vector; by default it is
    generated for single numbers.
    """
    tall = max((run.size for p in packings if isinstance(p, Panels) for run in p.runs), default=None)
    for lanes in (*(() if kernel is not None else (1,)), *(n for n in (4, 8) if n < isa.lanes)):
        with assuming(dims_of(function)) as assumptions:
            done = generate(function, weights, replace(isa, lanes=lanes, tall=tall), [p.key for p in packings])
        fitting = done if done is not None and [p.key for p in done[1]] == [p.key for p in packings] else None
        if kernel is None and (fitting is None or assumptions.guards):
            return None
        if fitting is not None:
            code = bound_code(fitting[0])
            kernel = (
                code if kernel is None or not assumptions.guards else emit.guarded(code, assumptions.guards, kernel)
            )
    return kernel


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
        across = 2 <= spatial < len(kinds) and _reads_across(sch.get(rv), spatial)
        if across:
            sch.reorder(*loops[spatial:], loops[spatial - 1])
        outer = loops[: spatial - across if spatial < len(kinds) else max(spatial - 1, 0)]
        # Indices of fused loops are quotients by all extents but the first, which must not be 0.
        fused = 1 + next((n for n, loop in enumerate(outer[1:]) if can_be_empty(sch.get(loop).extent)), len(outer) - 1)
        if outer:
            sch.parallel(_fused(sch, outer[:fused]))
        if across or any(can_be_empty(sch.get(loop).extent) for loop in loops[spatial:]):
            # The first of the terms sets the sum to 0: without terms nothing would.
            sch.decompose_reduction(rv, loops[spatial])
    scheduled = without_hidden_numbers(sch.mod["main"])
    made = scheduled.with_attr("global_symbol", function.attrs["global_symbol"])
    body = tvm_ffi.structural_map(made.body, [(s_tir.SBlockRealize, _truncating)], order="post")
    return tirx.PrimFunc(list(made.params), body, attrs=made.attrs)


def _reads_across(block: s_tir.SBlock, spatial: int) -> bool:
    """Whether a sum of terms reads numbers beside each other for the last of its `spatial` axes, none for its terms.

    LLVM computes such sums in vectors along that axis, term by term, but not one sum of terms that are apart.
    """
    last, terms = block.iter_vars[spatial - 1].var, [i.var for i in block.iter_vars[spatial:]]
    ends = [load.indices[-1] for load in loads(block.body) if len(load.indices)]
    return any(end.same_as(last) for end in ends) and not any(end.same_as(term) for end in ends for term in terms)


def _fused(sch: s_tir.Schedule, loops: Sequence[s_tir.schedule.LoopRV]) -> s_tir.schedule.LoopRV:
    """Loops as one; the first of them if TVM cannot simplify the indices of the one."""
    if len(loops) == 1:
        return loops[0]
    try:
        return sch.fuse(*loops)
    except tvm.error.InternalError:
        # Its check of indices divided by sizes (PadDividendToDivisor) is fatal where it should only give up.
        return loops[0]


def _truncating(block: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
    """A block whose indices of fused loops, which are not negative, are found by divisions that truncate.

    Divisions that round down ask for the signs of sizes. LLVM makes a copy of the inner loop for each answer, and of
    these for the next: with a power in the loop it does not come to an end.
    """
    kinds = [(tirx.FloorDiv, lambda e: tirx.truncdiv(e.a, e.b)), (tirx.FloorMod, lambda e: tirx.truncmod(e.a, e.b))]
    values = [tvm_ffi.structural_map(value, kinds, order="post") for value in block.iter_values]
    return s_tir.SBlockRealize(values, block.predicate, block.block, block.span)
