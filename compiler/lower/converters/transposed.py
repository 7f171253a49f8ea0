"""Transposed convolutions as ordinary convolutions: the outputs that are a stride apart form one convolution.

Output s·i + a is the sum of x[i - t] · w[s·t + a] over t. So an axis of stride s needs s convolutions with 1/s of the
taps each. They are computed as channels of one convolution, whose results are then interleaved. If the stride does not
divide the taps, some weights of these channels are zeros, and of a small map many results are dropped; CPUs compute
separate convolutions then. TVM's converter inserts zeros between the inputs and multiplies by them. (Shi et al., Is the
deconvolution layer the same as a convolutional layer?, https://arxiv.org/abs/1609.07009)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tvm import relax

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, fixed_size, shape_of

op = relax.op

FEWEST_CHANNELS = 8
"""The smallest number of output channels of a group for which separate convolutions are faster than weights of zero."""

MOST_PLACES = 1.2
"""The limit on computed outputs over kept ones for one convolution."""

_CONVOLUTIONS = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}


@dataclass(frozen=True, slots=True)
class AxisConvolution:
    """The convolution along one axis with `size` inputs, `taps` weights and a stride of `stride` outputs.

    The first `begin` outputs are dropped, the next `size * stride + more` are kept. The size may be an expression; all
    other numbers of the convolution follow without it. With a stride of one, only every `dilation`-th of the `taps` has
    a weight.
    """

    size: Any
    taps: int
    stride: int
    begin: int
    more: int
    dilation: int = 1

    @property
    def outputs(self) -> Any:
        """The number of outputs."""
        return self.size * self.stride + self.more

    @property
    def kernel(self) -> int:
        """The number of taps of each convolution, including zeros as padding."""
        return -(-self.taps // self.stride)

    @property
    def weights(self) -> int:
        """The number of weights of each convolution, including zeros as padding."""
        return (self.kernel - 1) // self.dilation + 1

    @property
    def first(self) -> int:
        """The index of the first group of `stride` outputs that is computed."""
        return min(self.begin // self.stride, self.kernel - 1)

    @property
    def _beyond(self) -> int:
        """The number of groups of `stride` outputs after those of the inputs."""
        return max(-(-(self.begin + self.more) // self.stride), 0)

    @property
    def places(self) -> Any:
        """The number of groups of `stride` outputs that are computed."""
        return self.size + (self._beyond - self.first)

    @property
    def padding(self) -> tuple[int, int]:
        """The padding before and after the input."""
        return self.kernel - 1 - self.first, self._beyond

    @property
    def exact(self) -> bool:
        """Whether all computed outputs are kept."""
        return self.cut == 0 and (self._beyond - self.first) * self.stride == self.more

    @property
    def more_steps(self) -> int:
        """The largest number of outputs that are a stride apart, less the number of inputs."""
        return -(-self.more // self.stride)

    @property
    def steps(self) -> Any:
        """The largest number of outputs that are a stride apart."""
        return self.size + self.more_steps

    def part(self, number: int) -> tuple[int, int, tuple[int, int]]:
        """The convolution of every output a stride apart from output `number`.

        Its first tap, its number of taps, and its padding, which is negative where it does not read inputs.
        """
        first, tap = divmod(self.begin + number, self.stride)
        taps = -(-(self.taps - tap) // self.stride)
        return tap, taps, (taps - 1 - first, first + self.more_steps)

    @property
    def cut(self) -> int:
        """The number of computed outputs before the first that is kept."""
        return self.begin - self.first * self.stride


@converter("ConvTranspose")
def conv_transpose(ctx: Context, data: relax.Expr, weight: relax.Expr, bias: relax.Expr | None = None) -> relax.Expr:
    """ConvTranspose as a convolution, or as a product if each plane has one input; TVM's converter handles others."""
    ctx, weight = _spread(_padded(ctx, data, weight), weight)
    axes = _axes(ctx, data, weight)
    if axes is None:
        return ctx.original(data, weight, bias)
    batch, inner = dims_of(data)[0], fixed_size(data, 1)
    groups = int(ctx.attrs.get("group", 1))
    outer = shape_of(weight)[1] * groups
    strides, rank = [a.stride for a in axes], len(axes)
    if groups == 1 and all(a.size == 1 and a.begin + a.outputs <= a.taps and a.dilation == 1 for a in axes):
        found = _product(ctx, data, weight, axes)
        return found if bias is None else op.add(found, op.reshape(bias, [1, outer, *[1] * rank]))
    if _wastes_work(ctx, axes, outer // groups):
        found = _in_parts(ctx, data, weight, axes, groups)
        return found if bias is None else op.add(found, op.reshape(bias, [1, outer, *[1] * rank]))
    found = _CONVOLUTIONS[rank](
        data,
        _rearranged(ctx, weight, axes, (groups, inner // groups, outer // groups)),
        padding=[a.padding[0] for a in axes] + [a.padding[1] for a in axes],
        dilation=[a.dilation for a in axes],
        groups=groups,
    )
    if prod(strides) > 1:
        split = op.reshape(found, [batch, outer, *strides, *(a.places for a in axes)])
        moved = op.permute_dims(split, [0, 1, *_interleaved(2 + rank, 2, rank)])
        found = op.reshape(moved, [batch, outer, *(a.places * a.stride for a in axes)])
    if not all(a.exact for a in axes):
        ends = [a.cut + a.outputs for a in axes]
        found = op.strided_slice(found, list(range(2, 2 + rank)), [a.cut for a in axes], ends, assume_inbound=True)
    return found if bias is None else op.add(found, op.reshape(bias, [1, outer, *[1] * rank]))


def _interleaved(places: int, parts: int, rank: int) -> list[int]:
    """The axes of `rank` numbers of places from `places` on, each followed by that of the parts from `parts` on."""
    return [i for d in range(rank) for i in (places + d, parts + d)]


def _wastes_work(ctx: Context, axes: Sequence[AxisConvolution], channels: int) -> bool:
    """Whether one convolution for all outputs would multiply by zeros, or compute outputs that are dropped.

    Of a small map the latter are many. Only where this costs time: on the CPU.
    """
    if ctx.backend != "cpu" or channels < FEWEST_CHANNELS or any(a.taps < a.stride for a in axes):
        return False
    if any(a.taps % a.stride for a in axes):
        return True
    if any(a.dilation > 1 or not isinstance(a.size, int) for a in axes):
        return False
    places, steps = prod(a.places for a in axes), prod(a.steps for a in axes)
    return bool(places > MOST_PLACES * steps)


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
    attrs = {k: v for k, v in ctx.attrs.items() if k not in ("dilations", "kernel_shape")}
    return dataclasses.replace(ctx, attrs=attrs), weight


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
    places = [a.steps for a in axes]
    split = op.reshape(op.concat(made, 1), [batch, *(a.stride for a in axes), channels, *places])
    moved = op.permute_dims(split, [0, 1 + rank, *_interleaved(2 + rank, 1, rank)])
    found = op.reshape(moved, [batch, channels, *(a.steps * a.stride for a in axes)])
    if all(a.more_steps * a.stride == a.more for a in axes):
        return found
    return op.strided_slice(found, list(spatial), [0] * rank, [a.outputs for a in axes], assume_inbound=True)


def _padded(ctx: Context, data: relax.Expr, weight: relax.Expr) -> Context:
    """The context with `pads` in place of `output_shape` and `auto_pad`, which determine them."""
    auto, wanted = ctx.text("auto_pad", "NOTSET"), ctx.attrs.get("output_shape")
    same = auto in ("SAME_UPPER", "SAME_LOWER")
    if not wanted and not same:
        return ctx
    sizes, taps = shape_of(data, 2), shape_of(weight)[2:]
    rank = len(sizes)
    strides, dilations, more = (ctx.attrs.get(k, None) or [d] * rank for k, d in _DEFAULTS)
    wanted = list(wanted)[-rank:] if wanted else [n * s for n, s in zip(sizes, strides, strict=True)]
    axes = zip(sizes, strides, more, taps, dilations, wanted, strict=True)
    total = [(n - 1) * s + extra + (k - 1) * d + 1 - goal for n, s, extra, k, d, goal in axes]
    # Places beyond what the input reaches are zeros after it, as output padding is.
    more = [extra + max(0, -t) for extra, t in zip(more, total, strict=True)]
    total = [max(0, t) for t in total]
    before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
    pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
    attrs = {k: v for k, v in ctx.attrs.items() if k not in ("output_shape", "auto_pad")}
    return dataclasses.replace(ctx, attrs={**attrs, "pads": pads, "output_padding": more})


def _axes(ctx: Context, data: relax.Expr, weight: relax.Expr) -> tuple[AxisConvolution, ...] | None:
    """The spatial axes; None if this conversion does not apply to the operator."""
    sizes, taps = dims_of(data)[2:], shape_of(weight)[2:]
    rank = len(sizes)
    strides, dilations, more = (ctx.attrs.get(k, [d] * rank) for k, d in _DEFAULTS)
    if rank not in _CONVOLUTIONS:
        return None
    taps = tuple((k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True))
    pads = [0] * 2 * rank if ctx.text("auto_pad", "NOTSET") == "VALID" else ctx.attrs.get("pads", [0] * 2 * rank)
    found = []
    for d in range(rank):
        beyond = taps[d] - strides[d] + more[d] - pads[d] - pads[d + rank]
        found.append(AxisConvolution(sizes[d], taps[d], strides[d], pads[d], beyond, dilations[d]))
    # An expression stands for one or more.
    fewest = [a.stride + a.more if not isinstance(a.size, int) else a.outputs for a in found]
    return tuple(found) if min(fewest) > 0 and all(a.begin >= 0 for a in found) else None


_DEFAULTS = (("strides", 1), ("dilations", 1), ("output_padding", 0))


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
