"""Prefetches of weights, and what sums share of them; of outputs before they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Step
from heterocc.compiler.lower.cpu.generate.places import Linear, index, offset
from heterocc.compiler.lower.cpu.generate.read import Kernel

FAR_NUMBERS = 192 << 10
"""The number of weights above which they are prefetched; fewer stay in a second-level cache."""

AHEAD = 1024
"""The distance in elements between a weight in use and the prefetched one."""

LINE = 16
"""The float32 elements of a cache line."""

WRITTEN_BYTES = 256 << 10
"""The size in bytes from which on outputs are prefetched: smaller ones may be in the second-level cache."""


def written_forms(kernel: Kernel) -> list[tuple[tirx.Buffer, Linear]]:
    """The outputs, as linear forms of the kernel's loops."""
    places = [kernel.loops[n] for n in kernel.places]
    given = [b for b in (kernel.sum_, *(s.buffer for s in kernel.after)) if kernel.argument(b) is not None]
    forms = [(b, offset(places, b, kernel.loops)) for b in given]
    return [(b, form) for b, form in forms if form is not None]


def fetching(step: Step, weights: tirx.Buffer, count: int, place: Callable[[Any], tirx.Expr]) -> Step:
    """A step of a sum that prefetches weights, of which each term has `count`; `place(term)` is that of the first."""
    every = max(n for n in (1, 2, 4) if n * count <= LINE or n == 1)

    def ahead(term: Any, number: int) -> None:
        if number % every == 0:
            emit.prefetch(weights, place(term) + index(AHEAD))
        step(term, number)

    return ahead


@dataclass(frozen=True, slots=True)
class Shared:
    """Sums that read the same `weights` one after the other: sum number `number` of `count`, of `terms` terms each.

    `first` is the place of the weights, of which they read `size`.
    """

    weights: tirx.Buffer
    first: tirx.Expr
    size: int
    terms: int
    count: int
    number: tirx.Expr


def fetching_next(step: Step, shared: Shared, index_of: Callable[[Any], tirx.Expr]) -> Step:
    """A step that prefetches a share of the weights after those that sums share, in all sums together all of these.

    `index_of` is the number of a term. Nothing is fetched in sums of fewer than UNROLL terms.
    """
    groups = shared.terms // emit.UNROLL
    turns, total = groups * shared.count, -(-shared.size // LINE)
    lines = -(-total // turns) if turns else 0

    def ahead(term: Any, number: int) -> None:
        if number == 0:
            turn = shared.number * index(groups) + tirx.floordiv(index_of(term), index(emit.UNROLL))
            # With more turns than lines, several in a row fetch the same one, rather than weights that are far off.
            line_ = turn * index(lines) if total >= turns else tirx.floordiv(turn * index(total), index(turns))
            place = shared.first + index(shared.size) + line_ * index(LINE)
            for line in range(lines):
                emit.prefetch(shared.weights, place + index(line * LINE))
        step(term, number)

    return ahead
