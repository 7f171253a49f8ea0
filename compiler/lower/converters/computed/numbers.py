"""Sizes that depend on data: registration of their converters, and small kernels of whole numbers.

An operator whose result has such sizes has two converters. That of `sizes` gives the shape of its first output as a
vector of int64, of which the sizes that are not known otherwise are used; or a list of vectors, one for each output.
That of `results` is called when the sizes are known, as dimensions of `Context.result`. What both need can be
`prepared` in a tensor, which then is the only input of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.registry import (
    PREPARED,
    RESULTS,
    SIZES,
    Applies,
    Context,
    Converter,
    converter,
    part_domain,
)
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.symbolic.given import Shape

PLACES = "heterocc_places"
"""The attribute of a node of the domain SIZES: output and axis of each size that it gives."""

LARGEST = 1 << 40
"""The most elements of a tensor whose shape a run computes. With one byte each they exceed the memory of most machines,
and the number of their bytes is far from the end of int64."""

MOST_EMPTY = 1 << 24
"""The largest product of all other sizes of a tensor without elements whose shape a run computes: they are counted."""

Numbers = Callable[[Sequence[tirx.Buffer]], Sequence[tirx.Expr]]
Check = Callable[[Sequence[tirx.Buffer]], Sequence[tuple[tirx.Expr, str]]]


def sizes(*which: str | Applies, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a function as the converter to the sizes of these operators' results."""

    def register(function: Converter) -> Converter:
        @converter(*which, domain=part_domain(SIZES, domain))
        def chosen(ctx: Context, *inputs: relax.Expr | None) -> relax.Expr:
            found = function(ctx, *inputs)
            shapes = found if isinstance(found, list) else [found]
            numbers = [int(n) for n in ctx.attrs[PLACES]]
            places = list(zip(numbers[::2], numbers[1::2], strict=True))
            used = list(dict.fromkeys(output for output, _ in places))

            def chosen_sizes(ins: Sequence[tirx.Buffer]) -> list[tirx.Expr]:
                return [element(ins[used.index(output)], axis) for output, axis in places]

            def check(ins: Sequence[tirx.Buffer]) -> list[tuple[tirx.Expr, str]]:
                every = [[element(shape, axis) for axis in range(int(shape.shape[0]))] for shape in ins]
                return [found for shape in every for found in possible(shape)]

            return vector(ctx, [ctx.bb.emit(shapes[n]) for n in used], len(places), chosen_sizes, check)

        return function

    return register


def results(*which: str | Applies, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a function as the converter of these operators with sizes that were computed before."""
    return converter(*which, domain=part_domain(RESULTS, domain))


Rule = Callable[[Sequence[Shape]], Shape]
_PREPARED: dict[str, Rule] = {}


def prepared(op_type: str, shape: Rule) -> Callable[[Converter], Converter]:
    """Register a function as the converter to the tensor that the two others read; `shape` follows from the inputs'."""
    _PREPARED[op_type] = shape
    return converter(op_type, domain=PREPARED)


def prepared_shape(op_type: str) -> Rule | None:
    """The rule for the shape of the tensor that an operator prepares; None if there is none."""
    return _PREPARED.get(op_type)


def whole(number: int) -> tirx.Expr:
    """A constant of int64."""
    return tirx.const(number, "int64")


def possible(shape: Sequence[tirx.Expr]) -> list[tuple[tirx.Expr, str]]:
    """The conditions that a computed shape has to meet before memory is asked for, each with what is wrong if not."""
    positive = [size >= whole(0) for size in shape]
    text = f"its result would have more than {LARGEST} elements, the limit of a computed shape"
    empty = f"its result would have no elements, but other sizes of more than {MOST_EMPTY}, the limit"
    filled = [size != whole(0) for size in shape]
    return [
        (tirx.all(whole(0) == whole(0), *positive), "a size of its result is negative"),
        (within_limit(shape), text),
        (tirx.any(tirx.all(whole(0) == whole(0), *filled), within_limit(shape, MOST_EMPTY)), empty),
    ]


def within_limit(factors: Sequence[tirx.Expr], most: int = LARGEST) -> tirx.Expr:
    """Whether a product of whole numbers is at most `most`, with 1 in place of 0."""
    total = tirx.const(1.0, "float64")
    for factor in factors:
        total = total * tirx.max(factor.astype("float64"), tirx.const(1.0, "float64"))
    return total <= tirx.const(float(most), "float64")


def vector(
    ctx: Context, tensors: Sequence[relax.Expr], count: int, numbers: Numbers, check: Check | None = None
) -> relax.Expr:
    """A vector of `count` numbers computed from the elements and shapes of tensors.

    The code stops with an error if a condition of `check` is false, which it says in words.
    """

    def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        lines: list[tirx.Stmt] = []
        lines += [asserted(ctx, *found) for found in (() if check is None else check(ins))]
        lines += [tirx.BufferStore(outs[0], n.astype("int64"), [whole(i)]) for i, n in enumerate(numbers(ins))]
        return tirx.SeqStmt(lines) if len(lines) > 1 else lines[0]

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        return statements(given, shape, body, "sizes", "int64")

    return emit_sized(ctx.bb, compute, tensors, [], [count], "int64", "sizes", opaque=True)


def table(
    ctx: Context,
    tensors: Sequence[relax.Expr],
    shape: Sequence[Any],
    write: Callable[[Sequence[tirx.Buffer], tirx.Buffer], tirx.Stmt],
    dtype: str = "int64",
    name: str = "table",
) -> relax.Expr:
    """A tensor that statements write."""

    def compute(given: list[te.Tensor], _: list[tirx.Expr], dims: list[tirx.Expr]) -> te.Tensor:
        return statements(given, dims, lambda i, o: write(i, o[0]), name, dtype)

    return emit_sized(ctx.bb, compute, tensors, [], shape, dtype, name, opaque=True)


def statements(
    given: Sequence[te.Tensor],
    shape: Sequence[tirx.Expr],
    body: Callable[[Sequence[tirx.Buffer], Sequence[tirx.Buffer]], tirx.Stmt],
    name: str,
    dtype: str,
) -> te.Tensor:
    """A tensor that statements write. Its buffers start at their first byte, as those of fused kernels do."""
    buffers = [tirx.decl_buffer(t.shape, t.dtype, f"{name}_{i}") for i, t in enumerate(given)]
    written = tirx.decl_buffer(list(shape), dtype, name)
    return te.extern([tuple(shape)], given, body, name=name, dtype=[dtype], in_buffers=buffers, out_buffers=[written])


def elements(
    ctx: Context, tensors: Sequence[relax.Expr], at: Callable[..., tirx.Expr], dtype: str, name: str, output: int = 0
) -> relax.Expr:
    """An output of the node, element by element: `at(tensors, shape, indices)`."""

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        return te.compute(shape, lambda *i: at(given, shape, [v.astype("int64") for v in i]), name=name)

    return emit_sized(ctx.bb, compute, tensors, [], ctx.result(output), dtype, name)


def loop(extent: tirx.Expr, body: Callable[[tirx.Var], tirx.Stmt]) -> tirx.Stmt:
    """A serial loop."""
    var = tirx.Var("i", "int64")
    return tirx.For(var, whole(0), extent.astype("int64"), tirx.ForKind.SERIAL, body(var))


def element(tensor: Any, number: int = 0) -> tirx.Expr:
    """An element of a vector, or a scalar, as int64."""
    indices = [whole(number)] if len(tensor.shape) else []
    return tensor[tuple(indices)].astype("int64")


def product(numbers: Sequence[tirx.Expr]) -> tirx.Expr:
    """The product of numbers."""
    total = whole(1)
    for number in numbers:
        total = total * number.astype("int64")
    return total


def unravelled(place: tirx.Expr, shape: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """The indices of an element by its place in row-major order."""
    found: list[tirx.Expr] = []
    for size in reversed(list(shape)):
        size = tirx.max(size.astype("int64"), whole(1))
        found.insert(0, tirx.floormod(place, size))
        place = tirx.floordiv(place, size)
    return found


def within(index: tirx.Expr, size: tirx.Expr) -> tirx.Expr:
    """An index limited to a dimension."""
    return tirx.max(whole(0), tirx.min(index, size.astype("int64") - whole(1)))
