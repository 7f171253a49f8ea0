"""Prefetches of what the epilogue of a product's tile reads and writes, while its sums are computed."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.cores import Core
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Walk
from heterocc.compiler.lower.cpu.generate.fetch import fetching_shares, written_forms
from heterocc.compiler.lower.cpu.generate.places import Linear, Place, at, offset
from heterocc.compiler.lower.cpu.generate.products.product_form import Product
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import is_number, typical
from heterocc.compiler.lower.kernels.expressions import loads

READ_TERMS = 32
"""Terms of a product from which on what its epilogue reads is prefetched: in fewer it would not arrive."""


def fetching_tile(
    kernel: Kernel,
    product: Product,
    arguments: Arguments,
    place: Place,
    tile: tuple[int, Sequence[tirx.Expr]],
    walk: Walk,
    unroll: int,
    core: Core,
) -> Walk:
    """A walk over the terms of a tile that prefetches what its epilogue reads and writes.

    `tile` are the number of rows, of which `place` has the first, and the starts of the vectors. `walk` unrolls
    `unroll` terms.
    """
    if typical(product.work) < emit.PARALLEL_WORK:
        return walk
    wanted = [(b, form, False) for b, form in epilogue_reads(kernel) if typical(product.terms.length) >= READ_TERMS]
    written = product.rows.length * product.columns.length
    if not is_number(written) or 4 * written >= core.fetched_bytes:
        wanted += [(b, form, True) for b, form in written_forms(kernel)]
    wanted = [w for w in wanted if product.rows.step(w[1]) and product.columns.step(w[1]) == 1]
    if not wanted:
        return walk
    *outer, (_, first) = place
    rows, starts = tile

    def fetch(row: tirx.Expr) -> None:
        for buffer, form, to_write in wanted:
            for start in starts:
                where = at(form, [*outer, (product.rows, first + row), (product.columns, start)])
                if where is not None:
                    emit.prefetch(arguments.flat(buffer), where, to_write=to_write)

    terms = product.terms.length
    if is_number(terms) and terms >= unroll:
        paced = is_number(product.columns.length)
        return lambda count, step: walk(count, fetching_shares(step, terms, rows, fetch, unroll=unroll, paced=paced))
    with emit.loop(rows, "unroll") as row:
        fetch(row)
    return walk


def epilogue_reads(kernel: Kernel) -> list[tuple[tirx.Buffer, Linear]]:
    """What the stages after the sum read from arguments, as linear forms of the kernel's loops: a residual, a bias."""
    reads = []
    for stage in kernel.after:
        every = list(kernel.loops)
        for number, var in zip(kernel.places, stage.iters, strict=True):
            every[number] = var
        for load in loads(stage.value):
            form = offset(load.indices, load.source, every) if kernel.argument(load.source) is not None else None
            if form is not None:
                reads.append((load.source, form))
    return reads
