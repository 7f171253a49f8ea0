"""Kernels for sizes that are known only at run time: generated code under the assumptions that it makes, else loops."""

from __future__ import annotations

from collections.abc import Collection

from tvm import tirx

from heterocc.compiler.lower.cpu.bound_sizes import with_bound_sizes
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Done
from heterocc.compiler.lower.cpu.generate.generate import generate
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.loops import in_loops
from heterocc.compiler.lower.cpu.sizes import assuming, dims_of
from heterocc.compiler.lower.kernels.quotients import truncating


def sized_kernel(function: tirx.PrimFunc, weights: Collection[int], isa: Isa) -> Done:
    """A kernel whose sizes are expressions of variables: the kernel, and the packings of its weights.

    Sizes that do not meet the assumptions of the generated code, such as fewer rows than a vector across them has, run
    in plain loops. These read weights as they are, and so does the generated code then, or packs them itself.
    """
    for constant in (weights, ()):
        with assuming(dims_of(function)) as assumptions:
            done = generate(function, constant, isa)
        if done is None or done[0].same_as(function):
            break
        code, packings = with_bound_sizes(truncating(done[0])), done[1]
        if not assumptions.guards:
            return code, packings
        if not packings:
            return emit.guarded(code, assumptions.guards, in_loops(function)), ()
    return in_loops(function), ()
