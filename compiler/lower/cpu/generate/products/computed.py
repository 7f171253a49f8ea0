"""Which kernels by element are joined to the product that reads them.

Arithmetic is computed panel by panel. Transposed matrices are read where they are: a copy of one that threads share is
written by one thread, and the others wait for it and read it from the cache of that core.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx

from heterocc.compiler.lower.cpu.generate.cores import Core
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, find_product
from heterocc.compiler.lower.cpu.generate.read import read_kernel
from heterocc.compiler.lower.cpu.generate.tiles import MOST_ROWS, edge_lanes, most_lines
from heterocc.compiler.lower.cpu.sizes import assuming, attempt, dims_of, is_number, typical
from heterocc.compiler.lower.kernels.expressions import divisor_up_to
from heterocc.compiler.lower.relax.kernels import KernelModule
from heterocc.compiler.lower.relax.merge import merge_pairs

LANES_USED = 0.8
"""The share of lanes that columns fill below which vectors along rows are faster."""

LEAST_COLUMNS = 5
"""Columns of a tile of vectors along rows, of equal tiles that cover a line of columns, below which they are not."""

MOST_TERMS = 1024
"""The most terms of numbers that are read down a column: each has a cache line of its own for a tile of rows."""


def joined_products(module: KernelModule, isa: Isa) -> KernelModule:
    """The module with arithmetic by element and transpositions joined to the products that alone read their results.

    A normalisation and activation before a 1×1 convolution is an example, which DenseNet has before each; a product of
    two transposed matrices is another, with two kernels before it.
    """
    joined = merge_pairs(module, _is_arithmetic, lambda function: _is_read_well(function, isa))
    return joined if len(joined.kernels) == len(module.kernels) else joined_products(joined, isa)


def _is_arithmetic(function: tirx.PrimFunc) -> bool:
    """Whether a kernel calls no function, chooses between no values and sums nothing up."""
    others: list[object] = []
    rules = [
        (ir.Call, others.append),
        (s_tir.SBlock, lambda block: others.append(block) if block.init is not None else None),
    ]
    tvm_ffi.structural_walk(function.body, rules, order="post")
    return not others


def _is_read_well(function: tirx.PrimFunc, isa: Isa) -> bool:
    """Whether a kernel is a product that reads what its vectors are computed from, or transposed factors in place."""

    def reads() -> bool:
        kernel = read_kernel(function, ())
        product = None if kernel is None else find_product(kernel)
        if kernel is None or product is None or not can_store(kernel) or _is_narrow(product, isa):
            return False
        return product.vectors.value is not None or (_reads_numbers(product, isa.core) and _reads_vectors(product, isa))

    with assuming(dims_of(function)):
        return bool(attempt(reads))


def _is_narrow(product: Product, isa: Isa) -> bool:
    """Whether columns are so few that vectors along whole ones of rows are better filled, which compute nothing."""
    length, rows = product.columns.length, product.rows.length
    if not product.columns.extents or not is_number(length) or typical(rows) % isa.lanes:
        return False
    if divisor_up_to(product.columns.extents[-1], MOST_ROWS) < LEAST_COLUMNS:
        return False
    computed = -(-length // isa.lanes) * isa.lanes - isa.lanes + edge_lanes(rows, length, isa)
    return length < LANES_USED * computed


def _reads_numbers(product: Product, core: Core) -> bool:
    """Whether numbers of a row are side by side, or those of a term are and the lines of all terms stay in a cache."""
    step = product.terms.step(product.numbers.form)
    if step is None or not (is_number(step) and is_number(product.terms.length)):
        return False
    if abs(step) <= 1:
        return True
    near = product.terms.length <= min(MOST_TERMS, most_lines(4 * abs(step), core))
    return near and product.rows.step(product.numbers.form) == 1


def _reads_vectors(product: Product, isa: Isa) -> bool:
    """Whether vectors are in a row, or panels of them are copied in square blocks."""
    form = product.vectors.form
    transposes = product.terms.step(form) == 1 and is_number(product.terms.length) and product.terms.length >= isa.lanes
    return transposes or product.columns.step(form) == 1
