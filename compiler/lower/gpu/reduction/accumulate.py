"""The merge of a reduction's partial results, derived from the block that adds one term at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.kernels.expressions import dtype_of, loads

Exprs = tuple[tirx.Expr, ...]

_WIDER = {"float16": "float32", "bfloat16": "float32"}
_MERGED = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min, tirx.And, tirx.Or)
_COMPARED = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or)


class UnknownFormError(Exception):
    """The block is not a reduction whose partial results can be merged."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The accumulated values of a reduction, their initial values and how they are merged; ArgMax has several values.

    `targets` are the stores of the results (buffer and indices), `dtypes` those of the accumulators: float32 for
    narrower floats. `terms` are expressions of the block's iterators.
    """

    targets: tuple[tuple[tirx.Buffer, Exprs], ...]
    dtypes: tuple[str, ...]
    starts: Exprs
    terms: Exprs
    merge: Callable[[Exprs, Exprs], Exprs]

    @property
    def loads(self) -> list[TensorLoad]:
        """All reads of buffers in the terms."""
        return [load for term in self.terms for load in loads(term)]


def accumulator_of(block: s_tir.SBlock) -> Accumulator:
    """The accumulator of a reduction block. Raises UnknownFormError."""
    stores = _stores(block.body)
    starts = _stores(block.init) if block.init is not None else []
    if len(stores) != len(starts) or not stores:
        raise UnknownFormError(block.name_hint)
    for store, start in zip(stores, starts, strict=True):
        if not store.buffer.same_as(start.buffer):
            raise UnknownFormError(block.name_hint)
    single = len(stores) == 1
    terms, merge = _single(stores[0]) if single else _several(stores)
    dtypes = tuple(_WIDER.get(d, d) if single else d for d in (dtype_of(s.value) for s in starts))
    return Accumulator(
        targets=tuple((s.buffer, tuple(s.indices)) for s in stores),
        dtypes=dtypes,
        starts=tuple(s.value.astype(d) for s, d in zip(starts, dtypes, strict=True)),
        terms=tuple(t.astype(d) for t, d in zip(terms, dtypes, strict=True)),
        merge=merge,
    )


def _stores(statement: tirx.Stmt) -> list[tirx.BufferStore]:
    """The stores of a block, with bound variables replaced by their values."""
    parts = list(statement.seq) if isinstance(statement, tirx.SeqStmt) else [statement]
    bound: list[tuple[tirx.Var, tirx.Expr]] = []
    stores = []
    for part in parts:
        if isinstance(part, tirx.Bind):
            bound.append((part.var, part.value))
        elif isinstance(part, tirx.BufferStore):
            value = next((v for var, v in bound if var.same_as(part.value)), part.value)
            stores.append(tirx.BufferStore(part.buffer, value, part.indices))
        else:
            raise UnknownFormError(type(part).__name__)
    return stores


def _single(store: tirx.BufferStore) -> tuple[Exprs, Callable[[Exprs, Exprs], Exprs]]:
    """The term and merge function of a block with one value: a sum, product, maximum, minimum, or, and."""
    value = store.value
    if not isinstance(value, _MERGED):
        raise UnknownFormError(type(value).__name__)
    kind = type(value)
    for old, term in ((value.a, value.b), (value.b, value.a)):
        if _is_accumulated(old, store) and not _mentions(term, store.buffer):
            return (term,), lambda a, b: (kind(a[0], b[0]),)
    raise UnknownFormError(type(value).__name__)


def _several(stores: Sequence[tirx.BufferStore]) -> tuple[Exprs, Callable[[Exprs, Exprs], Exprs]]:
    """The terms and merge function of a block with several values, all selected by one condition (ArgMax)."""
    taken = [s.value for s in stores]
    if any(not isinstance(v, tirx.Select) for v in taken):
        raise UnknownFormError("no choice")
    if any(not _is_accumulated(v.false_value, s) for v, s in zip(taken, stores, strict=True)):
        raise UnknownFormError("a value is not a choice between the old and the new one")
    condition = taken[0].condition
    if any(not tvm_ffi.structural_equal(v.condition, condition) for v in taken):
        raise UnknownFormError("two conditions")
    terms = tuple(v.true_value for v in taken)
    if any(_mentions(t, s.buffer) for t in terms for s in stores):
        raise UnknownFormError("a term depends on the others")

    def merge(a: Exprs, b: Exprs) -> Exprs:
        take = _rewritten(condition, stores, terms, a, b)
        return tuple(tirx.Select(take, right, left) for left, right in zip(a, b, strict=True))

    merge(terms, terms)  # raises an error now if the form is unknown
    return terms, merge


def _rewritten(expr: tirx.Expr, stores: Sequence[tirx.BufferStore], terms: Exprs, a: Exprs, b: Exprs) -> tirx.Expr:
    """A condition on old values and terms, rewritten to compare two partial results."""
    for store, term, left, right in zip(stores, terms, a, b, strict=True):
        if _is_accumulated(expr, store):
            return left
        if tvm_ffi.structural_equal(_bare(expr), _bare(term)):
            return right
    if isinstance(expr, _COMPARED):
        parts = (_rewritten(part, stores, terms, a, b) for part in (expr.a, expr.b))
        return type(expr)(*parts)
    raise UnknownFormError(type(expr).__name__)


def _bare(expr: tirx.Expr) -> tirx.Expr:
    """The expression without a cast to its own dtype."""
    while isinstance(expr, tirx.Cast) and dtype_of(expr) == dtype_of(expr.value):
        expr = expr.value
    return expr


def _is_accumulated(expr: tirx.Expr, store: tirx.BufferStore) -> bool:
    """Whether an expression loads the element that the store overwrites."""
    if not isinstance(expr, TensorLoad) or not expr.source.same_as(store.buffer):
        return False
    return all(tvm_ffi.structural_equal(i, j) for i, j in zip(expr.indices, store.indices, strict=True))


def _mentions(expr: tirx.Expr, buffer: tirx.Buffer) -> bool:
    return any(load.source.same_as(buffer) for load in loads(expr))
