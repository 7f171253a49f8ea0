"""Kernels for sizes that are known only at run time: generated code under the assumptions that it makes, else loops."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

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
from heterocc.compiler.lower.kernels.expressions import dtype_of
from heterocc.compiler.lower.kernels.quotients import truncating


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
        if kernel is None and (fitting is None or guards):
            return None
        if fitting is not None:
            code = bound_code(fitting[0])
            kernel = emit.guarded(code, guards, kernel) if kernel is not None and guards else code
    return kernel


def has_sizes(function: tirx.PrimFunc) -> bool:
    """Whether sizes of a kernel are known only at run time."""
    return bool(Assumptions(dims_of(function)))
