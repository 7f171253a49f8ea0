"""Products of a batch of separate items by the same weights: the rows of all items are rows of one product.

Item by item, a product of few rows reads all weights for each item, and most of its time is spent waiting for them. The
other kernels of a batch are loops over kernels for one item (`batches.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.dynamic.guarded import bound_code
from heterocc.compiler.lower.cpu.generate.candidates import Done
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.generate import generate
from heterocc.compiler.lower.cpu.generate.integers.byte_product import find_integer_product
from heterocc.compiler.lower.cpu.generate.integers.matrix_product import LEAST_ROWS
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Axis
from heterocc.compiler.lower.cpu.generate.products.product_form import find_product
from heterocc.compiler.lower.cpu.generate.read import BYTES, Kernel, read_kernel
from heterocc.compiler.lower.cpu.sizes import assuming, attempt, dims_of, typical
from heterocc.compiler.lower.itemwise import Pattern
from heterocc.compiler.lower.written import ITEMS

ROWS_AN_ITEM = 64
"""Rows of an item from which on its product takes as long as that of all items: weights serve many rows each."""


def rows_of_items(function: tirx.PrimFunc, pattern: Pattern, weights: Collection[int], isa: Isa) -> Done | None:
    """The kernel for all items of an unscheduled kernel for one that is a product of few rows, and its packings.

    None for any other kernel. `pattern` has for each argument and result whether it holds items. The kernel takes the
    number of items before its result.
    """
    whole = _for_all(function, pattern)
    if whole is None:
        return None
    with assuming(dims_of(whole)) as assumptions:
        if not attempt(lambda: _has_few_rows(whole, weights, isa)):
            return None
        done = generate(whole, weights, isa)
    if done is None or done[0].same_as(whole) or not done[1] or assumptions.guards:
        return None
    return bound_code(_with_items_in_rows(done[0], pattern)).with_attr(ITEMS, True), done[1]


def _has_few_rows(function: tirx.PrimFunc, weights: Collection[int], isa: Isa) -> bool:
    """Whether a kernel for all items is a product by a weight, with few rows for each and those of all as one axis."""
    kernel, most = read_kernel(function, weights), ROWS_AN_ITEM
    rows = None if kernel is None else _rows(kernel)
    if kernel is None:
        rows, most = _integer_rows(read_kernel(function, weights, BYTES)), LEAST_ROWS if isa.matrices else most
    if rows is None or not rows.loops:
        return False
    return rows.loops[0] == 0 and typical(rows.length) < most * typical(rows.extents[0])


def _rows(kernel: Kernel) -> Axis | None:
    product = find_product(kernel)
    return product.rows if product is not None and product.vectors.weight is not None and can_store(kernel) else None


def _integer_rows(kernel: Kernel | None) -> Axis | None:
    product = None if kernel is None else find_integer_product(kernel)
    return None if kernel is None or product is None or not can_store(kernel) else product.rows


def _for_all(function: tirx.PrimFunc, pattern: Sequence[bool]) -> tirx.PrimFunc | None:
    """The unscheduled kernel for all items, each value of which has a dimension of items before its own.

    None if there is none: it has several results, or is written already.
    """
    root = function.body.block if isinstance(function.body, s_tir.SBlockRealize) else None
    if root is None or not pattern[-1] or not all(isinstance(p.ty, tirx.BufferType) for p in function.params):
        return None
    if any(_writes(root, p) for p in function.params[:-1]):
        return None
    items, item = tirx.Var("items", "int64"), tirx.Var("item", "int64")
    wide = [p for p, mark in zip(function.params, pattern, strict=True) if mark]
    inner = _computed_from(root, wide)
    replace = [(b, _buffer(b, items)) for b in (*wide, *inner)]

    def renamed(var: tirx.Var) -> tirx.Var:
        return next((new for old, new in replace if old.same_as(var)), var)

    def holds_items(buffer: tirx.Buffer) -> bool:
        return any(new.same_as(buffer) for _, new in replace)

    def load(node: TensorLoad) -> TensorLoad:
        return tirx.BufferLoad(node.source, [item, *node.indices]) if holds_items(node.source) else node

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        indices = [item, *node.indices] if holds_items(node.buffer) else node.indices
        return tirx.BufferStore(node.buffer, node.value, indices)

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        if not holds_items(node.source):
            return node
        one = ir.Range.from_min_extent(item, tirx.const(1, "int64"))
        return tirx.BufferRegion(node.source, [one, *node.region])

    numbers = itertools.count()

    def nest(statement: tirx.Stmt) -> tirx.Stmt:
        """The loops of a block, in a loop over items."""
        mapped = tvm_ffi.structural_map(
            statement,
            [(tirx.Var, renamed), (TensorLoad, load), (tirx.BufferStore, store), (ir.TensorRegion, region)],
            order="post",
        )
        if not _uses(mapped, item):
            return mapped
        outer = tirx.Var(f"item_{next(numbers)}", "int64")
        own = tirx.Var(f"v_{outer.name}", "int64")

        def realized(node: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
            block = node.block
            over = tirx.IterVar(ir.Range.from_min_extent(tirx.const(0, "int64"), items), own, tirx.IterVar.DataPar)
            parts = (block.reads, block.writes, block.body, block.init)
            reads, writes, body, init = (None if p is None else _with(p, item, own) for p in parts)
            made = s_tir.SBlock([over, *block.iter_vars], reads, writes, block.name_hint, body, init)
            return s_tir.SBlockRealize([outer, *node.iter_values], node.predicate, made)

        looped = tvm_ffi.structural_map(mapped, [(s_tir.SBlockRealize, realized)], order="post")
        return tirx.For(outer, tirx.const(0, "int64"), items, tirx.ForKind.SERIAL, looped)

    statements = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    nests = [nest(statement) for statement in statements]
    allocated = [renamed(b) for b in root.alloc_buffers]
    block = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(nests) if len(nests) > 1 else nests[0], None, allocated)
    *given, result = [renamed(p) for p in function.params]
    return tirx.PrimFunc([*given, items, result], s_tir.SBlockRealize([], True, block), attrs=function.attrs)


def _computed_from(root: s_tir.SBlock, given: Sequence[tirx.Buffer]) -> list[tirx.Buffer]:
    """The buffers inside a kernel whose values depend on the given ones."""
    computed: list[tirx.Buffer] = []

    def visit(block: s_tir.SBlock) -> None:
        if any(r.source.same_as(b) for r in block.reads for b in (*given, *computed)):
            computed.extend(w.source for w in block.writes if not any(w.source.same_as(b) for b in (*given, *computed)))

    tvm_ffi.structural_walk(root.body, [(s_tir.SBlock, visit)], order="pre")
    return computed


def _writes(root: s_tir.SBlock, buffer: tirx.Buffer) -> bool:
    written: list[bool] = []
    tvm_ffi.structural_walk(
        root.body,
        [(s_tir.SBlock, lambda block: written.extend(w.source.same_as(buffer) for w in block.writes))],
        order="pre",
    )
    return any(written)


def _buffer(like: tirx.Buffer, items: tirx.Var) -> tirx.Buffer:
    ty = like.ty
    return tirx.decl_buffer([items, *like.shape], ty.dtype, like.name, scope=ty.storage_scope)


def _with_items_in_rows(function: tirx.PrimFunc, pattern: Sequence[bool]) -> tirx.PrimFunc:
    """A generated kernel whose arguments that hold items have these in their first dimension, as in the module."""
    *given, items, result = function.params
    replace: list[tuple[tirx.Buffer, tirx.Buffer, tirx.Expr]] = []
    for param, mark in zip([*given, result], pattern, strict=True):
        if mark:
            _, first, *rest = param.shape
            ty = param.ty
            rows = tirx.decl_buffer([items * first, *rest], ty.dtype, param.name, data_alignment=1)
            replace.append((param, rows, first))

    def renamed(var: tirx.Var) -> tirx.Var:
        return next((new for old, new, _ in replace if old.same_as(var)), var)

    def placed(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> Sequence[tirx.Expr]:
        first = next((first for _, new, first in replace if new.same_as(buffer)), None)
        return indices if first is None else [indices[0] * first + indices[1], *indices[2:]]

    rules = [
        (tirx.Var, renamed),
        (TensorLoad, lambda load: tirx.BufferLoad(load.source, placed(load.source, load.indices))),
        (tirx.BufferStore, lambda s: tirx.BufferStore(s.buffer, s.value, placed(s.buffer, s.indices))),
    ]
    body = tvm_ffi.structural_map(function.body, rules, order="post")
    return tirx.PrimFunc([renamed(p) for p in function.params], body, attrs=function.attrs)


def _with(part: tvm.ir.Node, old: tirx.Var, new: tirx.Var) -> tvm.ir.Node:
    return tvm_ffi.structural_map(part, [(tirx.Var, lambda var: new if var.same_as(old) else var)], order="post")


def _uses(statement: tirx.Stmt, var: tirx.Var) -> bool:
    uses: list[tirx.Var] = []
    tvm_ffi.structural_walk(statement, [(tirx.Var, lambda v: uses.append(v) if v.same_as(var) else None)], order="pre")
    return bool(uses)
