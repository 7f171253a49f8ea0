"""Convolutions and pools of images of any size with padding that depends on the size, as `auto_pad` demands."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of, shape_of
from heterocc.compiler.lower.sized import emit_sized


@converter("Conv")
def _conv(ctx: Context, data: relax.Expr, weight: relax.Expr, *bias: relax.Expr | None) -> relax.Expr:
    """TVM's convolution; it cannot pad an image of any size."""
    if keeps_size(ctx) and not all(isinstance(n, int) for n in dims_of(data)[2:]):
        ctx, data = padded_by_size(ctx, data, shape_of(weight)[2:], tirx.const(0, dtype_of(data)))
    elif ctx.backend == "cpu" and _cuts_a_signal(ctx, data, weight):
        ctx, data = _padded_before(ctx, data)
    return ctx.original(data, weight, *bias)


def _cuts_a_signal(ctx: Context, data: relax.Expr, weight: relax.Expr) -> bool:
    """Whether a convolution reads strided frames of one channel of any length: a product, if nothing is padded."""
    strides, pads = ctx.attrs.get("strides", None) or [1], ctx.attrs.get("pads", None) or [0]
    whole = ctx.attrs.get("group", 1) * shape_of(weight)[1] == 1
    return whole and rank_of(data) == 3 and strides[-1] > 1 and any(pads) and not isinstance(dims_of(data)[2], int)


def _padded_before(ctx: Context, data: relax.Expr) -> tuple[Context, relax.Expr]:
    """The context without padding, and the padded data."""
    first, last = ctx.attrs["pads"]
    padded = relax.op.nn.pad(data, (0, 0, 0, 0, first, last))
    return ctx.changed({}, without=("pads",)), ctx.bb.emit(padded)


def keeps_size(ctx: Context) -> bool:
    """Whether an operator pads so that its result has the input's size divided by the strides."""
    return ctx.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")


def padded_by_size(
    ctx: Context, data: relax.Expr, kernel: Sequence[int], fill: tirx.Expr | None
) -> tuple[Context, relax.Expr]:
    """The context without `auto_pad`, and the data that it is for: padded if the padding depends on the size.

    The padded data begin with the first window and end with the last one. Without `fill` such data are refused.
    """
    batch, channels, *sizes = dims_of(data)
    strides, dilations = (ctx.attrs.get(k, None) or [1] * len(sizes) for k in ("strides", "dilations"))
    if ctx.node.op_type != "Conv" and any(d != 1 for d in dilations):
        raise NotImplementedError("`auto_pad` of windows with dilation over images of any size")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    late = ctx.text("auto_pad", "NOTSET") == "SAME_LOWER"
    ctx = ctx.changed({}, without=("auto_pad", "ceil_mode"))
    if all(s == 1 for s in strides):
        before = [(r - 1 + late) // 2 for r in reach]
        pads = [*before, *(r - 1 - b for r, b in zip(reach, before, strict=True))]
        return ctx.changed({"pads": pads}), data
    if fill is None:
        raise NotImplementedError("means over windows whose padding depends on the image's size are not supported")
    axes = list(zip(sizes, strides, reach, strict=True))
    wanted = [(n + (s - 1)) // s * s - s + r for n, s, r in axes]

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        image = given[0]
        inner = list(zip(image.shape[2:], shape[2:], strict=True))
        first = [(tirx.max(whole - n, tirx.const(0, "int64")) + late) // 2 for n, whole in inner]

        def at(*i: tirx.Var) -> tirx.Expr:
            places = [v - f for v, f in zip(i[2:], first, strict=True)]
            inside = [tirx.all(p >= 0, p < n) for p, (n, _) in zip(places, inner, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), image(i[0], i[1], *places), fill)

        return te.compute(shape, at, name="padded")

    found = emit_sized(ctx.bb, compute, [data], [], [batch, channels, *wanted], dtype_of(data), "padded")
    return ctx, found
