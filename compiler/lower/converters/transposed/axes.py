"""The spatial axes of a transposed convolution, and the convolutions that compute it along one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax

from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, shape_of

MOST_AXES = 3

_DEFAULTS = (("strides", 1), ("dilations", 1), ("output_padding", 0))


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
    def operator_taps(self) -> int:
        """The number of weights of the operator along the axis, without the zeros of a dilation."""
        return (self.taps - 1) // self.dilation + 1

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


def padded(ctx: Context, data: relax.Expr, weight: relax.Expr) -> Context:
    """The context with `pads` in place of `output_shape` and `auto_pad`, which determine them."""
    auto, wanted = ctx.text("auto_pad", "NOTSET"), ctx.attrs.get("output_shape")
    same = auto in ("SAME_UPPER", "SAME_LOWER")
    if not wanted and not same:
        return ctx
    taps = shape_of(weight)[2:]
    rank = len(taps)
    strides, dilations, more = (ctx.attrs.get(k, None) or [d] * rank for k, d in _DEFAULTS)
    # The places that the input reaches beyond a stride for each of its elements, and those of the result.
    total = [extra + (k - 1) * d + 1 - s for s, extra, k, d in zip(strides, more, taps, dilations, strict=True)]
    if wanted:
        goals = zip(total, shape_of(data, 2), strides, list(wanted)[-rank:], strict=True)
        total = [beyond + n * s - goal for beyond, n, s, goal in goals]
    # Places beyond what the input reaches are zeros after it, as output padding is.
    more = [extra + max(0, -t) for extra, t in zip(more, total, strict=True)]
    total = [max(0, t) for t in total]
    before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
    pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
    return ctx.changed({"pads": pads, "output_padding": more}, without=("output_shape", "auto_pad"))


def axes_of(ctx: Context, data: relax.Expr, weight: relax.Expr) -> tuple[AxisConvolution, ...] | None:
    """The spatial axes; None if this conversion does not apply to the operator."""
    sizes, taps = dims_of(data)[2:], shape_of(weight)[2:]
    rank = len(sizes)
    strides, dilations, more = (ctx.attrs.get(k, [d] * rank) for k, d in _DEFAULTS)
    if rank > MOST_AXES:
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
