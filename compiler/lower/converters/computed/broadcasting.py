"""Operators that broadcast tensors of which only the run knows whether a size is 1, and so stands for another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import onnx
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.computed.numbers import elements, results, sizes, vector, whole, within
from heterocc.compiler.lower.converters.registry import REQUIRED, Context, converter, own_converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.operators.record import Operator
from heterocc.compiler.operators.table import of_node

Buffers = Sequence[tirx.Buffer]


def _is_elementwise(operator: Operator) -> bool:
    return bool(operator.broadcasts) and not operator.matrices


def _is_product(operator: Operator) -> bool:
    """Whether the inputs are stacks of matrices: all dimensions but the last two are broadcast."""
    return bool(operator.broadcasts) and operator.matrices


def broadcast_places(node: onnx.NodeProto) -> Sequence[int]:
    """The places of the inputs that an operator broadcasts with each other; none for other operators."""
    if any(a.name in ("transBatchA", "transBatchB") and a.i for a in node.attribute):
        return ()
    return [place for place in range(len(node.input)) if place in of_node(node).broadcasts]


def broadcast_dims(operator: Operator, shape: Sequence[Any]) -> Sequence[Any]:
    """The dimensions of an input that are broadcast."""
    return shape[:-2] if operator.matrices else shape


def _wide(ctx: Context, count: int) -> list[int]:
    """The inputs, of so many, that are broadcast."""
    return [place for place in range(count) if place in ctx.record.broadcasts]


def _columns(shapes: Iterable[Sequence[tirx.Expr]]) -> list[list[tirx.Expr]]:
    """The sizes of the inputs for each dimension of the result, the first one first."""
    backwards = zip_longest(*([d.astype("int64") for d in reversed(shape)] for shape in shapes), fillvalue=whole(1))
    return [list(column) for column in backwards][::-1]


def _columns_of(ctx: Context, ins: Buffers) -> list[list[tirx.Expr]]:
    return _columns(broadcast_dims(ctx.record, list(b.shape)) for b in ins)


def _size(column: Sequence[tirx.Expr]) -> tirx.Expr:
    """The size of the result: that of the inputs which is not 1."""
    size = column[0]
    for other in column[1:]:
        size = tirx.Select(size == whole(1), other, size)
    return size


@sizes(_is_elementwise)
def _broadcast(ctx: Context, *inputs: relax.Expr) -> relax.Expr:
    wide = [inputs[place] for place in _wide(ctx, len(inputs))]
    rank = max(map(rank_of, wide))
    return vector(ctx, wide, rank, lambda ins: [_size(column) for column in _columns_of(ctx, ins)])


@sizes(_is_product)
def _product_sizes(ctx: Context, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    def numbers(ins: Buffers) -> list[tirx.Expr]:
        one, other = (list(b.shape) for b in ins)
        stack = [_size(column) for column in _columns_of(ctx, ins)]
        if ctx.attrs.get("transA", 0):
            one[-2:] = one[:-3:-1]
        if ctx.attrs.get("transB", 0):
            other[-2:] = other[:-3:-1]
        return [*stack, *one[-2:-1], *([other[-1]] if len(other) > 1 else [])]

    ranks = rank_of(left), rank_of(right)
    return vector(ctx, [left, right], max(ranks) - sum(rank == 1 for rank in ranks), numbers)


@converter(lambda operator: operator.broadcasts, domain=REQUIRED)
def _fitting(ctx: Context, *inputs: relax.Expr) -> relax.Expr:
    """A number that is computed only if all sizes of the inputs that are broadcast are equal or 1."""

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        text = "the sizes of its inputs differ"
        fits = [
            tirx.any(size == _size(column), size == whole(1)) for column in _columns_of(ctx, ins) for size in column
        ]
        return [(tirx.all(*fits), text)]

    return vector(ctx, inputs, 1, lambda ins: [_size(_columns_of(ctx, ins)[0])], check)


@results(_is_elementwise)
def _broadcasted(ctx: Context, *inputs: relax.Expr | None) -> Any:
    """The operator on inputs that all have the shape of the result."""
    places = _wide(ctx, len(inputs))
    wide = [v if v is None or n not in places else _expanded(ctx, v) for n, v in enumerate(inputs)]
    return _converted(ctx, *wide)


def _converted(ctx: Context, *inputs: relax.Expr | None) -> Any:
    """The operator by its own converter or, without one, by TVM's."""
    convert = own_converter(ctx.record.domain, ctx.record.name)
    return ctx.original(*inputs) if convert is None else convert(ctx, *inputs)


@results(_is_product)
def _product(ctx: Context, left: relax.Expr, right: relax.Expr) -> Any:
    """The product of stacks that both have the dimensions of the result."""
    if min(rank_of(left), rank_of(right)) < 2:
        return _converted(ctx, left, right)

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            (data,) = given
            stack = zip(i[len(shape) - len(data.shape) : -2], data.shape[:-2], strict=True)
            return data(*(within(v.astype("int64"), d) for v, d in stack), *i[-2:])

        return te.compute(shape, at, name="expand")

    wanted = ctx.result()[:-2]
    whole_inputs = [
        emit_sized(ctx.bb, compute, [data], [], [*wanted, *dims_of(data)[-2:]], dtype_of(data), "expand")
        for data in (left, right)
    ]
    return _converted(ctx, *whole_inputs)


def _expanded(ctx: Context, data: relax.Expr) -> relax.Expr:
    rank = rank_of(data)

    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        return given[0](*(within(v, d) for v, d in zip(i[len(i) - rank :], given[0].shape, strict=True)))

    return elements(ctx, [data], at, dtype_of(data), "expand")
