"""Transposed convolutions as ordinary convolutions: the outputs that are a stride apart form one convolution.

Output s·i + a is the sum of x[i - t] · w[s·t + a] over t. So an axis of stride s needs s convolutions with 1/s of the
taps each. They are computed as channels of one convolution, whose results are then interleaved. If the stride does not
divide the taps, some weights of these channels are zeros, and of a small map many results are dropped. CPUs compute
separate convolutions then; with strides of one, products of all inputs and taps, which are added where they overlap.
TVM's converter inserts zeros between the inputs and multiplies by them. (Shi et al., Is the deconvolution layer the
same as a convolutional layer?, https://arxiv.org/abs/1609.07009)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.joining import concatenated
from heterocc.compiler.lower.converters.overlaps import Windows, added_columns
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.requested import has_fixed_sizes
from heterocc.compiler.lower.converters.transposed.axes import AxisConvolution, axes_of, padded
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, fixed_size, shape_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import as_int64

op = relax.op

FEWEST_CHANNELS = 8
"""The smallest number of output channels of a group for which separate convolutions are faster than weights of zero."""

MOST_PLACES = 1.2
"""The limit on computed outputs over kept ones for one convolution."""

FEWEST_OF_STRIDE_ONE = 20
"""The smallest number of input channels of a group for which convolutions of stride one take longer than products."""

FILTERED_TAPS, FILTERED_OUTPUTS = 3, 24
"""Filtering saves time with so many taps along an axis, from so many output channels times the dilation on."""

_CONVOLUTIONS = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}


@converter("ConvTranspose")
def conv_transpose(ctx: Context, data: relax.Expr, weight: relax.Expr, bias: relax.Expr | None = None) -> relax.Expr:
    """ConvTranspose as a convolution, or as a product if each plane has one input; TVM's converter handles others."""
    if ctx.attrs.get("output_shape") and not all(isinstance(size, int) for size in dims_of(data)[2:]):
        return _of_shape(ctx, data, weight, bias)
    ctx, weight = _spread(padded(ctx, data, weight), weight)
    axes = axes_of(ctx, data, weight)
    if axes is None:
        return ctx.original(data, weight, bias)
    batch, inner = dims_of(data)[0], fixed_size(data, 1)
    groups = int(ctx.attrs.get("group", 1))
    outer = shape_of(weight)[1] * groups
    strides, rank = [a.stride for a in axes], len(axes)
    if groups == 1 and all(a.size == 1 and a.begin + a.outputs <= a.taps and a.dilation == 1 for a in axes):
        found = _product(ctx, data, weight, axes)
        return found if bias is None else op.add(found, op.reshape(bias, [1, outer, *[1] * rank]))
    channels = (groups, inner // groups, outer // groups)
    if _overlaps(ctx, data, axes, channels):
        return _overlapped(ctx, data, weight, bias, axes, channels)
    if outer // groups >= FEWEST_CHANNELS and _wastes_work(ctx, axes):
        found = _in_parts(ctx, data, weight, axes, groups)
        return found if bias is None else op.add(found, op.reshape(bias, [1, outer, *[1] * rank]))
    found = _CONVOLUTIONS[rank](
        data,
        _rearranged(ctx, weight, axes, channels),
        padding=[a.padding[0] for a in axes] + [a.padding[1] for a in axes],
        dilation=[a.dilation for a in axes],
        groups=groups,
    )
    if prod(strides) > 1 and not has_fixed_sizes(data):
        found = _put_together(ctx, found, axes, outer, cut=True)
    elif prod(strides) > 1:
        split = op.reshape(found, [batch, outer, *strides, *(a.places for a in axes)])
        moved = op.permute_dims(split, [0, 1, *_interleaved(2 + rank, 2, rank)])
        found = op.reshape(moved, [batch, outer, *(a.places * a.stride for a in axes)])
    if not all(a.exact for a in axes) and (prod(strides) == 1 or has_fixed_sizes(data)):
        ends = [a.cut + a.outputs for a in axes]
        found = op.strided_slice(found, list(range(2, 2 + rank)), [a.cut for a in axes], ends, assume_inbound=True)
    return found if bias is None else op.add(found, op.reshape(bias, [1, outer, *[1] * rank]))


def _of_shape(ctx: Context, data: relax.Expr, weight: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """The operator with `output_shape` for data whose sizes, and so what is cut off, are known only at run time.

    The whole result is computed, of which a window is taken, with zeros behind it where it is larger.
    """
    wanted, rank = [int(n) for n in ctx.attrs["output_shape"]], len(dims_of(data)) - 2
    upper = ctx.text("auto_pad", "NOTSET") == "SAME_UPPER"
    plain = ctx.changed({}, without=("output_shape", "auto_pad", "pads"))
    whole = ctx.bb.emit(conv_transpose(plain, data, weight))

    def compute(tensors: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(image: tirx.Var, channel: tirx.Var, *places: tirx.Var) -> tirx.Expr:
            read, inside = [], []
            for place, size, goal in zip(places, tensors[0].shape[2:], shape[2:], strict=True):
                cut = tirx.max(size - goal, as_int64(0))
                half = tirx.floordiv(cut, as_int64(2))
                read.append(place + (half if upper else cut - half))
                inside.append(read[-1] < size)
            return tirx.if_then_else(
                tirx.all(*inside) if rank > 1 else inside[0],
                tensors[0](image, channel, *read),
                tirx.const(0, dtype_of(data)),
            )

        return te.compute(shape, at, name="window")

    shape = [*dims_of(whole)[:2], *wanted[-rank:]]
    found = emit_sized(ctx.bb, compute, [whole], [], shape, dtype_of(whole), "window")
    return found if bias is None else op.add(found, op.reshape(bias, [1, dims_of(whole)[1], *[1] * rank]))


def _put_together(
    ctx: Context, found: relax.Expr, axes: Sequence[AxisConvolution], outer: int, *, cut: bool
) -> relax.Expr:
    """The outputs of convolutions for each set of outputs that are strides apart: one kernel for sizes of any number.

    The sets of a channel follow one another if outputs are `cut` off, else the channels of a set.
    """
    strides = [a.stride for a in axes]

    def compute(given: te.Tensor) -> te.Tensor:
        def value(image: tirx.Expr, channel: tirx.Expr, *places: tirx.Expr) -> tirx.Expr:
            reached = [p + a.cut if cut else p for p, a in zip(places, axes, strict=True)]
            phase = tirx.const(0, "int64")
            for place, stride in zip(reached, strides, strict=True):
                phase = phase * stride + tirx.floormod(place, stride)
            plane = channel * prod(strides) + phase if cut else phase * outer + channel
            return given[(image, plane, *(tirx.floordiv(p, s) for p, s in zip(reached, strides, strict=True)))]

        return te.compute((given.shape[0], outer, *(a.outputs for a in axes)), value, name="put_together")

    return ctx.bb.emit_te(compute, ctx.bb.emit(found), primfunc_name_hint="put_together")


def _interleaved(places: int, parts: int, rank: int) -> list[int]:
    """The axes of `rank` numbers of places from `places` on, each followed by that of the parts from `parts` on."""
    return [i for d in range(rank) for i in (places + d, parts + d)]


def _wastes_work(ctx: Context, axes: Sequence[AxisConvolution]) -> bool:
    """Whether one convolution for all outputs would multiply by zeros, or compute outputs that are dropped.

    Of a small map the latter are many. Only where this costs time: on the CPU.
    """
    if ctx.backend != "cpu" or any(a.taps < a.stride for a in axes):
        return False
    if any(a.taps % a.stride for a in axes):
        return True
    if any(a.dilation > 1 or not isinstance(a.size, int) for a in axes):
        return False
    places, steps = prod(a.places for a in axes), prod(a.steps for a in axes)
    return bool(places > MOST_PLACES * steps)


def _overlaps(ctx: Context, data: relax.Expr, axes: Sequence[AxisConvolution], channels: tuple[int, int, int]) -> bool:
    """Whether products for all taps, added where they overlap, are faster than a convolution.

    With strides of one they save the taps outside the input, unless filtering saves more multiplications.
    """
    _, inner, outer = channels
    if not has_fixed_sizes(data) or ctx.backend != "cpu" or any(a.stride > 1 for a in axes):
        return False
    if inner < FEWEST_OF_STRIDE_ONE or prod(a.outputs for a in axes) <= MOST_PLACES * prod(a.size for a in axes):
        return False
    return any(a.operator_taps != FILTERED_TAPS for a in axes) or outer < FILTERED_OUTPUTS * axes[0].dilation


def _overlapped(
    ctx: Context,
    data: relax.Expr,
    weight: relax.Expr,
    bias: relax.Expr | None,
    axes: Sequence[AxisConvolution],
    channels: tuple[int, int, int],
) -> relax.Expr:
    """The transposed convolution as a product for all inputs and taps, whose results are added where they overlap."""
    groups, inner, outer = channels
    taps, rank = [a.operator_taps for a in axes], len(axes)
    split = ctx.bb.emit(op.reshape(weight, [groups, inner, outer, *taps]))
    moved = ctx.bb.emit(op.permute_dims(split, [0, 2, *range(3, 3 + rank), 1]))
    kernel = ctx.bb.emit(op.reshape(moved, [groups * outer * prod(taps), inner, *[1] * rank]))
    products = ctx.bb.emit(_CONVOLUTIONS[rank](data, kernel, groups=groups))
    batch, _, *sizes = dims_of(data)
    columns = ctx.bb.emit(op.reshape(products, [batch, groups * outer, *taps, *sizes]))
    places = [Windows(a.stride, a.dilation, a.begin, a.outputs) for a in axes]
    found = added_columns(ctx, columns, places)
    return found if bias is None else op.add(found, op.reshape(bias, [1, groups * outer, *[1] * rank]))


def _product(ctx: Context, data: relax.Expr, weight: relax.Expr, axes: Sequence[AxisConvolution]) -> relax.Expr:
    """The transposed convolution of one input for each channel, without bias: a product of vector and matrix."""
    inner, outer, *taps = shape_of(weight)
    batch, spatial = dims_of(data)[0], list(range(2, 2 + len(axes)))
    columns = ctx.bb.emit(op.reshape(weight, [inner, outer * prod(taps)]))
    found = op.reshape(op.matmul(op.reshape(data, [batch, inner]), columns), [batch, outer, *taps])
    if all(a.outputs == a.taps for a in axes):
        return found
    begins = [a.begin for a in axes]
    return op.strided_slice(found, spatial, begins, [a.begin + a.outputs for a in axes], assume_inbound=True)


def _spread(ctx: Context, weight: relax.Expr) -> tuple[Context, relax.Expr]:
    """The context without `dilations`, and the weights with zeros in their place, unless all strides are one."""
    taps = shape_of(weight)[2:]
    strides, dilations = (ctx.attrs.get(k, None) or [1] * len(taps) for k in ("strides", "dilations"))
    if max(strides) == 1 or max(dilations) == 1:
        return ctx, weight
    for axis, (count, dilation) in enumerate(zip(taps, dilations, strict=True), 2):
        shape = list(shape_of(weight))
        weight = ctx.bb.emit(op.reshape(weight, [*shape[: axis + 1], 1, *shape[axis + 1 :]]))
        widths = [0] * 2 * (len(shape) + 1)
        widths[2 * (axis + 1) + 1] = 1
        for _ in range(dilation - 1):
            weight = ctx.bb.emit(op.nn.pad(weight, widths))
        shape[axis] *= dilation
        weight = ctx.bb.emit(op.reshape(weight, shape))
        weight = ctx.bb.emit(op.strided_slice(weight, [axis], [0], [(count - 1) * dilation + 1], assume_inbound=True))
    return ctx.changed({}, without=("dilations", "kernel_shape")), weight


def _in_parts(
    ctx: Context, data: relax.Expr, weight: relax.Expr, axes: Sequence[AxisConvolution], groups: int
) -> relax.Expr:
    """The transposed convolution without bias, by a convolution for each set of outputs that are strides apart."""
    rank, spatial = len(axes), range(2, 2 + len(axes))
    inner, outer = shape_of(weight)[:2]
    made = []
    for numbers in product(*(range(a.stride) for a in axes)):
        parts = [a.part(n) for a, n in zip(axes, numbers, strict=True)]
        read = data
        if any(min(ends) < 0 for _, _, ends in parts):
            begins = [max(0, -before) for _, _, (before, _) in parts]
            ends = [a.size - max(0, -after) for a, (_, _, (_, after)) in zip(axes, parts, strict=True)]
            read = ctx.bb.emit(op.strided_slice(data, list(spatial), begins, ends, assume_inbound=True))
        taps = [count for _, count, _ in parts]
        kernel = ctx.bb.emit(
            op.strided_slice(
                weight, list(spatial), [t for t, _, _ in parts], [a.taps for a in axes], [a.stride for a in axes]
            )
        )
        for axis in spatial:
            kernel = ctx.bb.emit(op.flip(kernel, axis))
        kernel = ctx.bb.emit(op.reshape(kernel, [groups, inner // groups, outer, *taps]))
        kernel = ctx.bb.emit(op.permute_dims(kernel, [0, 2, 1, *range(3, 3 + rank)]))
        kernel = ctx.bb.emit(op.reshape(kernel, [groups * outer, inner // groups, *taps]))
        padding = [max(0, ends[side]) for side in (0, 1) for _, _, ends in parts]
        made.append(ctx.bb.emit(_CONVOLUTIONS[rank](read, kernel, padding=padding, groups=groups)))
    batch, channels = dims_of(data)[0], groups * outer
    # In a kernel of its own: fused with its reader, each element of a vector would choose among the convolutions.
    joined = concatenated(ctx, made, 1, [batch, channels * len(made), *dims_of(made[0])[2:]])
    return _put_together(ctx, joined, axes, channels, cut=False)


def _rearranged(
    ctx: Context, weight: relax.Expr, axes: Sequence[AxisConvolution], channels: tuple[int, int, int]
) -> relax.Expr:
    """Weights [groups · inner, outer, …] rearranged for the convolution: [groups · outer · strides, inner, …].

    Each step at most doubles the size, so that constant folding applies (see FOLD_BYTES).
    """
    groups, inner, outer = channels
    rank = len(axes)
    for d, axis in enumerate(axes):
        missing = axis.kernel * axis.stride - axis.taps
        if missing:
            widths = [0] * 2 * (2 + rank)
            widths[2 * (2 + d) + 1] = missing
            weight = ctx.bb.emit(op.nn.pad(weight, widths))
    split = [groups, inner, outer, *(n for a in axes for n in (a.weights, a.stride))]
    weight = ctx.bb.emit(op.reshape(weight, split))
    for d, axis in enumerate(axes):
        if axis.weights > 1:
            weight = ctx.bb.emit(op.flip(weight, 3 + 2 * d))
    order = [0, 2, *(4 + 2 * d for d in range(rank)), 1, *(3 + 2 * d for d in range(rank))]
    weight = ctx.bb.emit(op.permute_dims(weight, order))
    rows = groups * outer * prod(a.stride for a in axes)
    return ctx.bb.emit(op.reshape(weight, [rows, inner, *(a.weights for a in axes)]))
