"""Prefetches of what the epilogue of a product's tile reads and writes, before its sums are computed."""

from __future__ import annotations

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.cores import Core
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.fetch import written_forms
from heterocc.compiler.lower.cpu.generate.places import Linear, Place, at, offset
from heterocc.compiler.lower.cpu.generate.products.product_form import Product
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import is_number, typical
from heterocc.compiler.lower.kernels.expressions import loads

READ_TERMS = 32
"""Terms of a product from which on what its epilogue reads is prefetched: in fewer it would not arrive."""


def fetch_tile(
    kernel: Kernel, product: Product, arguments: Arguments, place: Place, rows: int, starts: list[tirx.Expr], core: Core
) -> None:
    """Prefetch what the epilogue of a tile reads and writes: some rows, of which `place` has the first, of vectors."""
    if typical(product.work) < emit.PARALLEL_WORK:
        return
    wanted = [(b, form, False) for b, form in epilogue_reads(kernel) if typical(product.terms.length) >= READ_TERMS]
    written = product.rows.length * product.columns.length
    if not is_number(written) or 4 * written >= core.fetched_bytes:
        wanted += [(b, form, True) for b, form in written_forms(kernel)]
    wanted = [w for w in wanted if product.rows.step(w[1]) and product.columns.step(w[1]) == 1]
    *outer, (_, first) = place
    if not wanted:
        return
    with emit.loop(rows, "unroll") as row:
        for buffer, form, to_write in wanted:
            for start in starts:
                where = at(form, [*outer, (product.rows, first + row), (product.columns, start)])
                if where is not None:
                    emit.prefetch(arguments.flat(buffer), where, to_write=to_write)


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
