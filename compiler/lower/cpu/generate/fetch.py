"""Prefetches: of what the epilogue of a tile reads and writes, while the sums are computed, and of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from heterocc.compiler.lower.cpu.blocks import loads
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.places import Linear, Place, at, index, offset
from heterocc.compiler.lower.cpu.generate.product_form import Product
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import typical

READ_TERMS = 32
"""Terms of a product from which on what its epilogue reads is prefetched: in fewer it would not arrive."""

WRITTEN_BYTES = 256 << 10
"""The size in bytes from which on outputs are prefetched: smaller ones may be in the second-level cache."""

FAR_NUMBERS = 192 << 10
"""The number of weights above which they are prefetched; fewer stay in a second-level cache."""

AHEAD = 1024
"""The distance in elements between a weight in use and the prefetched one."""

LINE = 16
"""The float32 elements of a cache line."""


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
    lines = -(-shared.size // (LINE * shared.count * groups)) if groups else 0

    def ahead(term: Any, number: int) -> None:
        if number == 0:
            group = shared.number * index(groups) + tirx.floordiv(index_of(term), index(emit.UNROLL))
            place = shared.first + index(shared.size) + group * index(lines * LINE)
            for line in range(lines):
                emit.prefetch(shared.weights, place + index(line * LINE))
        step(term, number)

    return ahead


def fetch_tile(
    kernel: Kernel, found: Product, arguments: Arguments, place: Place, tile: tuple[int, Sequence[tirx.Expr]]
) -> None:
    """Prefetch for a tile: its number of rows, of which `place` has the first, and the starts of its vectors."""
    if typical(found.work) < emit.PARALLEL_WORK:
        return
    wanted = [(b, form, False) for b, form in _reads(kernel) if typical(found.terms.length) >= READ_TERMS]
    if 4 * typical(found.rows.length) * typical(found.columns.length) >= WRITTEN_BYTES:
        wanted += [(b, form, True) for b, form in _writes(kernel)]
    *outer, (_, first) = place
    rows, starts = tile
    for buffer, form, to_write in wanted:
        if not found.rows.step(form) or found.columns.step(form) != 1:
            continue
        with emit.loop(rows, "unroll") as row:
            for start in starts:
                where = at(form, [*outer, (found.rows, first + row), (found.columns, start)])
                if where is not None:
                    emit.prefetch(arguments.flat(buffer), where, to_write=to_write)


def _reads(kernel: Kernel) -> list[tuple[tirx.Buffer, Linear]]:
    """What the stages after the sum read from arguments, as linear forms of the kernel's loops: a residual, a bias."""
    found = []
    for stage in kernel.after:
        every = list(kernel.loops)
        for number, var in zip(kernel.places, stage.iters, strict=True):
            every[number] = var
        for load in loads(stage.value):
            form = offset(load.indices, load.source, every) if kernel.argument(load.source) is not None else None
            if form is not None:
                found.append((load.source, form))
    return found


def _writes(kernel: Kernel) -> list[tuple[tirx.Buffer, Linear]]:
    """The outputs, as linear forms of the kernel's loops."""
    places = [kernel.loops[n] for n in kernel.places]
    given = [b for b in (kernel.sum_, *(s.buffer for s in kernel.after)) if kernel.argument(b) is not None]
    forms = [(b, offset(places, b, kernel.loops)) for b in given]
    return [(b, form) for b, form in forms if form is not None]
