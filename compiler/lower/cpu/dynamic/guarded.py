"""Kernels for sizes that are known only at run time: generated code under the assumptions that it makes, else loops."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.assumptions import Assumptions
from heterocc.compiler.lower.cpu.bound_sizes import with_bound_sizes
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Done, Packing
from heterocc.compiler.lower.cpu.generate.generate import generate
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.read import read_kernel
from heterocc.compiler.lower.cpu.loops import in_loops
from heterocc.compiler.lower.cpu.sizes import assuming, attempt, dims_of
from heterocc.compiler.lower.kernels.expressions import dtype_of, parts_of
from heterocc.compiler.lower.kernels.quotients import truncating
from heterocc.compiler.lower.variables import factors


def sized_kernel(function: tirx.PrimFunc, weights: Collection[int], isa: Isa) -> Done:
    """A kernel whose sizes are expressions of variables: the kernel, and the packings of its weights.

    Sizes that do not meet the assumptions of the generated code, such as rows shorter than a vector, run in plain
    loops; sums of products, such as depthwise convolutions, in generated code of narrower vectors if that fits. If
    weights are packed, this goes down to single numbers, so that all read the same weights.
    """
    with assuming(dims_of(function)) as assumptions:
        done = generate(function, weights, isa)
    if done is None or done[0].same_as(function):
        return in_loops(function), ()
    code, packings = bound_code(done[0]), done[1]
    if not assumptions.guards:
        return code, packings
    if all(_holds_of_elements(guard, function) for guard in assumptions.guards):
        return _unless_empty(code, assumptions.guards), packings
    plain = in_loops(function)
    if not packings:
        with assuming(dims_of(function)):
            sums = attempt(lambda: read_kernel(function, weights)) is not None
        slow = (_narrower_code(function, weights, isa, (), plain) or plain) if sums else plain
        return emit.guarded(code, assumptions.guards, slow), ()
    if any(dtype_of(function.params[p.argument]) == "int8" for p in packings):
        return plain, ()  # sums of integers have no form for single numbers
    other = _narrower_code(function, weights, isa, packings)
    return (plain, ()) if other is None else (emit.guarded(code, assumptions.guards, other), packings)


def _holds_of_elements(guard: tirx.Expr, function: tirx.PrimFunc) -> bool:
    """Whether a guard holds wherever the only result has elements: it says that sizes of the result are not 0."""
    if not isinstance(guard, tirx.NE) or not isinstance(guard.b, tirx.IntImm) or int(guard.b) != 0:
        return False
    written = parts_of(function.body, tirx.BufferStore)
    *others, result = function.params
    if any(store.buffer.same_as(param) for store in written for param in others):
        return False
    sizes = [factor for dim in result.shape for factor in factors(dim)]
    return all(
        int(factor) != 0
        if isinstance(factor, tirx.IntImm)
        else any(tvm_ffi.structural_equal(factor, size) for size in sizes)
        for factor in factors(guard.a)
    )


def _unless_empty(code: tirx.PrimFunc, guards: Sequence[tirx.Expr]) -> tirx.PrimFunc:
    """Code that writes nothing where guards do not hold, because the result has no elements there."""
    nothing = tirx.PrimFunc(list(code.params), tirx.Evaluate(tirx.const(0, "int64")), attrs=code.attrs)
    return emit.guarded(code, guards, nothing) if guards else code


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
        guards = assumptions.guards
        if kernel is None and (fitting is None or not all(_holds_of_elements(guard, function) for guard in guards)):
            return None
        if fitting is not None:
            code = bound_code(fitting[0])
            if kernel is None:
                kernel = _unless_empty(code, guards)
            else:
                kernel = emit.guarded(code, guards, kernel) if guards else code
    return kernel


def has_sizes(function: tirx.PrimFunc) -> bool:
    """Whether sizes of a kernel are known only at run time."""
    return bool(Assumptions(dims_of(function)))
