"""Conditions without which a run cannot go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.computed.numbers import element, statements, vector, whole
from heterocc.compiler.lower.converters.registry import REQUIRED, Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of
from heterocc.compiler.lower.sized import emit_sized

WANTED = "heterocc_wanted"
"""The attribute of an If of the domain REQUIRED: 1 if the condition has to be true, else 0."""
AXES = "heterocc_axes"
"""The attribute of the domain REQUIRED: the axis that a Shape checks; the axes of which a Reshape copies the size in
place of a 0."""
LENGTHS = "heterocc_lengths"
"""The attribute of a Size of the domain REQUIRED: the sizes of its axes. `NAMED` is the operator that needs them."""
LEFT, RELATIONS, RIGHT = "heterocc_left", "heterocc_relations", "heterocc_right"
"""The attributes of Sizes of the domain REQUIRED: texts of sizes and how they are related; `NAMED` has the operator,
and a text for each relation."""
LEAST, NAMED = "heterocc_least", "heterocc_named"
"""The attributes of a Shape of the domain REQUIRED: the least size, and the text of the error for a smaller one."""


TAKEN, NOT_COPIED, LEAST_SIZE, KNOWN_SIZES, RELATED, SHAPED = "If", "Reshape", "Shape", "Size", "Sizes", "Identity"
"""The operators of the domain REQUIRED."""


@converter(TAKEN, domain=REQUIRED)
def _required(ctx: Context, condition: relax.Expr) -> relax.Expr:
    """A number that is computed only if the condition is what it has to be."""
    wanted = int(ctx.attrs[WANTED])
    other = "else" if wanted else "then"
    text = f"with these inputs it takes its {other} branch, in which or after which a node cannot run"
    return vector(
        ctx,
        [condition],
        1,
        lambda ins: [element(ins[0])],
        lambda ins: [(tirx.EQ(element(ins[0]), whole(wanted)), text)],
    )


@converter(NOT_COPIED, domain=REQUIRED)
def _not_copied(ctx: Context, data: relax.Expr, shape: relax.Expr) -> relax.Expr:
    """A number that is computed only if no size is 0 that then would mean another one."""
    axes = [int(axis) for axis in ctx.attrs[AXES]]
    text = "a computed size is 0 with these inputs, which stands for that of the data"

    def check(ins: Sequence[tirx.Buffer]) -> list[tuple[tirx.Expr, str]]:
        return [
            (tirx.any(element(ins[1], axis) != whole(0), ins[0].shape[axis].astype("int64") == whole(0)), text)
            for axis in axes
        ]

    return vector(ctx, [data, shape], 1, lambda ins: [element(ins[1], axes[0])], check)


@converter(LEAST_SIZE, domain=REQUIRED)
def _least(ctx: Context, data: relax.Expr) -> relax.Expr:
    """A number that is computed only if a size is large enough."""
    (axis,), least = (int(axis) for axis in ctx.attrs[AXES]), int(ctx.attrs[LEAST])

    def size(ins: Sequence[tirx.Buffer]) -> tirx.Expr:
        return ins[0].shape[axis].astype("int64")

    def check(ins: Sequence[tirx.Buffer]) -> list[tuple[tirx.Expr, str]]:
        return [(size(ins) >= whole(least), bytes(ctx.attrs[NAMED]).decode())]

    return vector(ctx, [data], 1, lambda ins: [size(ins)], check)


@converter(KNOWN_SIZES, domain=REQUIRED)
def _of_sizes(ctx: Context, data: relax.Expr) -> relax.Expr:
    """A number that is computed only if dimensions have the sizes that a node needs."""
    wanted = zip(ctx.attrs[AXES], ctx.attrs[LENGTHS], strict=True)
    places = [(int(axis), int(size)) for axis, size in wanted]
    text = "a computed size of an input is not what the others need"

    def check(ins: Sequence[tirx.Buffer]) -> list[tuple[tirx.Expr, str]]:
        return [(tirx.EQ(ins[0].shape[axis].astype("int64"), whole(size)), text) for axis, size in places]

    named = onnx.NodeProto()
    named.CopyFrom(ctx.node)
    named.op_type = bytes(ctx.attrs[NAMED]).decode()
    own = dataclasses.replace(ctx, node=named)
    return vector(own, [data], 1, lambda ins: [ins[0].shape[places[0][0]]], check)


@converter(RELATED, domain=REQUIRED)
def _related(ctx: Context, *tensors: relax.Expr) -> relax.Expr:
    """A number that is computed only if the sizes of tensors are related as a node needs it."""
    variables = ctx.variables
    assert variables is not None
    texts = [[bytes(text).decode() for text in ctx.attrs[key]] for key in (LEFT, RELATIONS, RIGHT, NAMED)]
    sides = [variables.of_text(text) for pair in zip(texts[0], texts[2], strict=True) for text in pair]
    named = onnx.NodeProto()
    named.CopyFrom(ctx.node)
    named.op_type, *messages = texts[3]
    own = dataclasses.replace(ctx, node=named)

    def body(_: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer], counts: Sequence[tirx.Expr]) -> tirx.Stmt:
        pairs = zip(counts[::2], counts[1::2], texts[1], messages, strict=True)
        checks = [asserted(own, relation(left, kind, right), text) for left, right, kind, text in pairs]
        return tirx.SeqStmt([*checks, tirx.BufferStore(outs[0], whole(0), [whole(0)])])

    def compute(given: list[te.Tensor], counts: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        wide = [c.astype("int64") for c in counts]
        return statements(given, shape, lambda ins, outs: body(ins, outs, wide), "related", "int64")

    return emit_sized(ctx.bb, compute, tensors, sides, [1], "int64", "related", opaque=True)


def relation(left: tirx.Expr, kind: str, right: tirx.Expr) -> tirx.Expr:
    """Whether two sizes are related so (`Requirement.relation`)."""
    match kind:
        case "equal":
            return tirx.EQ(left, right)
        case "at_least":
            return left >= right
        case "multiple":
            safe = tirx.max(right, whole(1))
            return tirx.all(right > whole(0), tirx.EQ(tirx.floormod(left, safe), whole(0)))
    return tirx.any(tirx.EQ(left, right), tirx.EQ(left, whole(1)), tirx.EQ(right, whole(1)))


@converter(SHAPED, domain=REQUIRED)
def _of_shape(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The data with the shape that a node needs. A run ends in which a size differs that is not a number here."""
    wanted = ctx.result()
    declared = [own if isinstance(size, int) else size for own, size in zip(dims_of(data), wanted, strict=True)]

    def compute(tensors: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        return te.compute(shape, lambda *i: tensors[0](*i), name="shaped")

    return emit_sized(ctx.bb, compute, [data], [], wanted, dtype_of(data), "shaped", opaque=True, shapes=[declared])
