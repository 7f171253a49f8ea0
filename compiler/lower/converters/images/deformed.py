"""Deformable convolution: the input at computed places, times the weights.

Source: X. Zhu et al., "Deformable ConvNets v2: More Deformable, Better Results", CVPR 2019.
"""

from __future__ import annotations

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of, shape_of

op = relax.op


@converter("DeformConv")
def deform_conv(
    ctx: Context,
    data: relax.Expr,
    weight: relax.Expr,
    offset: relax.Expr,
    bias: relax.Expr | None = None,
    mask: relax.Expr | None = None,
) -> relax.Expr:
    """Deformable convolution of [batch, channels, height, width] tensors.

    `offset` is [batch, offset groups · places of the kernel · 2, rows, columns], `mask` the same without the 2.
    """
    kernel = shape_of(weight)
    if rank_of(data) != 4:
        raise NotImplementedError("only deformable convolution of images is supported")
    batch, channels, height, width = dims_of(data)[0], *shape_of(data, 1)
    group, offset_group = ctx.attrs.get("group", 1), ctx.attrs.get("offset_group", 1)
    strides, dilations = ctx.attrs.get("strides", (1, 1)), ctx.attrs.get("dilations", (1, 1))
    pads = ctx.attrs.get("pads", (0, 0, 0, 0))
    rows, columns = shape_of(offset, 2)
    places, dtype = kernel[2] * kernel[3], dtype_of(data)
    shared = channels // offset_group

    def gather(x: te.Tensor, moved: te.Tensor, *masks: te.Tensor) -> te.Tensor:
        def number(value: int) -> tirx.Expr:
            return tirx.const(value, dtype)

        def pixel(n: tirx.Expr, c: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
            """An element of the input, 0 outside. The index stays inside, because both branches may be computed."""
            inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
            kept = [tirx.max(0, tirx.min(i, most - 1)) for i, most in ((row, height), (column, width))]
            return tirx.Select(inside, x(n, c, *kept), number(0))

        def at(n: tirx.Var, c: tirx.Var, p: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            first = ((c // shared) * places + p) * 2
            start = (i * strides[0] - pads[0] + (p // kernel[3]) * dilations[0]).astype(dtype)
            y = start + moved(n, first, i, j)
            start = (j * strides[1] - pads[1] + (p % kernel[3]) * dilations[1]).astype(dtype)
            z = start + moved(n, first + 1, i, j)
            # Places far outside have no pixel; bounded, they are integers.
            y, z = (tirx.max(number(-2), tirx.min(v, number(m + 1))) for v, m in ((y, height), (z, width)))
            top, left = tirx.floor(y), tirx.floor(z)
            down, right = y - top, z - left
            row, column = top.astype("int32"), left.astype("int32")
            value = (
                pixel(n, c, row, column) * (number(1) - down) * (number(1) - right)
                + pixel(n, c, row, column + 1) * (number(1) - down) * right
                + pixel(n, c, row + 1, column) * down * (number(1) - right)
                + pixel(n, c, row + 1, column + 1) * down * right
            )
            return value * masks[0](n, (c // shared) * places + p, i, j) if masks else value

        return te.compute((batch, channels, places, rows, columns), at, name="sample")

    given = [data, offset, *([] if mask is None else [mask])]
    taken = ctx.bb.emit_te(gather, *given, primfunc_name_hint="sample")
    parts = ctx.bb.emit(op.reshape(taken, (batch, group, channels // group * places, rows * columns)))
    weights = ctx.bb.emit(op.reshape(weight, (group, kernel[0] // group, kernel[1] * places)))
    product = ctx.bb.emit(op.matmul(weights, parts))
    result = ctx.bb.emit(op.reshape(product, (batch, kernel[0], rows, columns)))
    return result if bias is None else op.add(result, op.reshape(bias, (1, kernel[0], 1, 1)))
