"""Prefetches of weights, and what sums share of them; of outputs before they are stored; of rows that are far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Step
from heterocc.compiler.lower.cpu.generate.epilogue import form_of, outputs_of
from heterocc.compiler.lower.cpu.generate.places import Linear, index, offset
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number, zero_unless
from heterocc.compiler.lower.kernels.expressions import dtype_of, itemsize, loads

AHEAD = 1024
"""The distance in elements between a weight in use and the prefetched one."""

LINE = 16
"""The float32 elements of a cache line."""

_ALONE = emit.Part(index(0), 1)

Weight = Callable[[Any], tuple[tirx.Buffer, tirx.Expr]]
"""Where the weights of a term begin, for all rows of a tile."""


def written_forms(kernel: Kernel) -> list[tuple[tirx.Buffer, Linear]]:
    """The outputs, as linear forms of the kernel's loops."""
    places = [kernel.loops[n] for n in kernel.places]
    forms = [(b, offset(places, b, kernel.loops)) for b in outputs_of(kernel)]
    return [(b, form) for b, form in forms if form is not None]


def epilogue_reads(kernel: Kernel) -> list[tuple[tirx.Buffer, Linear]]:
    """What the stages after the sum read from arguments, as linear forms of the kernel's loops: a residual, a bias."""
    every = [(load, stage.iters) for stage in kernel.after for load in loads(stage.value)]
    given = [(load, iters) for load, iters in every if kernel.argument(load.source) is not None]
    forms = [(load.source, form_of(kernel, load.indices, load.source, iters)) for load, iters in given]
    return [(source, form) for source, form in forms if form is not None]


def fetching(step: Step, count: int, weight: Weight) -> Step:
    """A step of a sum that prefetches weights, of which each term has `count`."""
    every = max(n for n in (1, 2, 4) if n * count <= LINE or n == 1)

    def ahead(term: Any, number: int) -> None:
        if number % every == 0:
            weights, first = weight(term)
            emit.prefetch(weights, first + index(AHEAD))
        step(term, number)

    return ahead


def fetch_far(flat: tirx.Buffer, first: tirx.Expr, numbers: Size, size: Size, least: int) -> None:
    """Prefetch numbers in one go, of a tensor of `size` bytes if these are at least so many.

    They come to the second-level cache: the first-level one waits for few lines at a time, and so does what comes next.
    """
    lines = -(-numbers // LINE)
    if not is_number(size):
        # Computed apart, as TVM would compare other sizes with a number of each kernel, which then had no common code.
        lines = zero_unless(lines, emit.bound(index(size)) >= index(least))
    elif size < least:
        return
    first = emit.bound(first)
    with emit.loop(lines) as line:
        emit.prefetch(flat, first + line * index(LINE), second=True)


def lines_after(weights: tirx.Buffer, first: tirx.Expr, size: Size) -> tuple[Size, Callable[[tirx.Expr], None]]:
    """How many cache lines weights have of which sums read `size`, and what prefetches one of those after them."""
    numbers = 4 * LINE // itemsize(dtype_of(weights))

    def fetch(line: tirx.Expr) -> None:
        emit.prefetch(weights, first + index(size) + line * index(numbers))

    return -(-size // numbers), fetch


def fetching_shares(
    step: Step,
    terms: Size,
    items: Size,
    fetch: Callable[[tirx.Expr], None],
    index_of: Callable[[Any], tirx.Expr] = lambda term: term,
    sum_: emit.Part = _ALONE,
    unroll: int = emit.UNROLL,
) -> Step:
    """A step of sums of `terms` terms that calls `fetch` with a share of the numbers up to `items` at every few terms.

    Spread like this, prefetches leave room for what the sums themselves read. `sum_` is this sum of all those that
    fetch the items together. Every `unroll` terms fetch as many items until all are fetched, and then the last one
    again, so that sums of any length have common code: nothing is fetched in sums of fewer terms.
    """
    groups = terms // unroll
    turns = groups * sum_.parts
    each = -(-items // turns) if not is_number(turns) or turns else 0

    def ahead(term: Any, number: int) -> None:
        if number == 0:
            turn = sum_.number * index(groups) + tirx.floordiv(index_of(term), index(unroll))
            first = tirx.min(turn * index(each), index(items - 1))
            for item in range(as_number(each)):
                fetch(first + index(item))
        step(term, number)

    return ahead
