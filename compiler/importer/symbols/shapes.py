"""Shapes of results as expressions of named dimensions, for operators that compute sizes from those of their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from heterocc.compiler.importer.symbols.operators.attention import attention_shapes_of, standard_attention
from heterocc.compiler.importer.symbols.operators.contrib import MICROSOFT, concatenated, contrib_shapes_of
from heterocc.compiler.importer.symbols.operators.ml import ML, ml_shapes_of
from heterocc.compiler.importer.symbols.operators.slices import slice_shapes
from heterocc.compiler.importer.symbols.operators.windows import transposed_shapes, unpooled_shapes, window_shapes
from heterocc.compiler.symbolic.comparisons import broadcast
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, larger, number, product_of

Rule = Callable[[Given], list[Shape] | None]


def shapes_of(given: Given) -> list[Shape] | None:
    """The shapes of a node's outputs, if there is a rule for its operator and enough is known of its inputs."""
    if given.node.domain == ML:
        return ml_shapes_of(given)
    if given.node.domain == MICROSOFT:
        return attention_shapes_of(given) or contrib_shapes_of(given)
    rule = _RULES.get(given.node.op_type) if not given.node.domain else None
    return rule(given) if rule is not None and given.shape() is not None else None


def _reshape(given: Given) -> list[Shape] | None:
    shape, wanted = given.shape(), given.elements(1)
    if given.opset < 5:
        wanted = [number(int(n)) for n in given.attribute("shape")]
    if shape is None or wanted is None:
        return None
    copied = given.attribute("allowzero", 0) == 0
    dims: list[Size | None] = []
    for axis, size in enumerate(wanted):
        if size is not None and size.number == 0 and copied:
            dims.append(shape[axis] if axis < len(shape) else None)
        else:
            dims.append(size)
    places = [axis for axis, size in enumerate(dims) if size is not None and size.number == -1]
    if places:
        rest = [d for axis, d in enumerate(dims) if axis not in places]
        dims[places[0]] = None
        if len(places) == 1 and None not in shape and None not in rest:
            total = product_of(d for d in shape if d is not None)
            dims[places[0]] = quotient(total, product_of(d for d in rest if d is not None))
    return [tuple(dims)]


def _flatten(given: Given) -> list[Shape] | None:
    shape = given.shape()
    if shape is None or None in shape:
        return None
    axis = given.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [tuple(product_of(d for d in part if d is not None) for part in (shape[:axis], shape[axis:]))]


def _expand(given: Given) -> list[Shape] | None:
    shape, wanted = given.shape(), given.elements(1)
    if shape is None or wanted is None:
        return None
    rank = max(len(shape), len(wanted))
    own: list[Size | None] = [*[number(1)] * (rank - len(shape)), *shape]
    asked: list[Size | None] = [*[number(1)] * (rank - len(wanted)), *wanted]
    return [tuple(broadcast(a, b) for a, b in zip(own, asked, strict=True))]


def _constant_of_shape(given: Given) -> list[Shape] | None:
    found = given.elements(0)
    return None if found is None else [tuple(found)]


def _whole_constant(given: Given, index: int) -> list[Size] | None:
    """The element of a constant of one floating-point number, if that is whole."""
    array = given.constants[index] if index < len(given.constants) else None
    if array is None or array.size != 1 or array.dtype.kind != "f" or not float(array.flat[0]).is_integer():
        return None
    return [number(int(array.flat[0]))]


def _range(given: Given) -> list[Shape] | None:
    ends = [given.sizes(index) or _whole_constant(given, index) for index in range(3)]
    if any(end is None for end in ends):
        return None
    start, limit, delta = (end[0] for end in ends if end is not None)
    if delta.number is None or delta.number == 0:
        return None
    if delta.number < 0:
        start, limit, delta = limit, start, -delta
    whole = start.number == 0 and limit.text in given.dims
    length = limit if whole else larger(limit - start, number(0))
    return [(quotient(length + delta - number(1), delta),)]


def _tile(given: Given) -> list[Shape] | None:
    shape, times = given.shape(), given.sizes(1)
    if shape is None or times is None:
        return None
    return [tuple(None if d is None else d * n for d, n in zip(shape, times, strict=True))]


def _concat(given: Given) -> list[Shape] | None:
    found = concatenated(given.shapes, given.attribute("axis"))
    return None if found is None else [found]


def _split(given: Given) -> list[Shape] | None:
    shape, count = given.shape(), len(given.node.output)
    if shape is None:
        return None
    axis = given.attribute("axis", 0) % len(shape)
    size = shape[axis]
    parts = given.attribute("split") if given.opset < 13 else given.sizes(1)
    sizes: list[Size | None]
    if parts is not None:
        sizes = [p if isinstance(p, Size) else number(int(p)) for p in parts]
    elif given.has(1) or size is None:
        sizes = [None] * count
    else:
        # What remains for the last part, or that the parts are equal, is a requirement (requirements/shaping.py).
        equal = given.opset < 18
        part = quotient(size if equal else size + number(count - 1), number(count))
        sizes = [part] * count
        if part is not None and not equal:
            sizes[-1] = larger(size - part * number(count - 1), number(0))  # a last part may be empty
    return [(*shape[:axis], s, *shape[axis + 1 :]) for s in sizes]


def _top_k(given: Given) -> list[Shape] | None:
    """Values and places: as many as are asked for. A run whose dimension has fewer ends with an error."""
    shape, wanted = given.shape(), given.sizes(1) if given.opset >= 10 else [number(given.attribute("k"))]
    if shape is None or not shape:
        return None
    axis = given.attribute("axis", -1) % len(shape)
    size, count = shape[axis], wanted[0] if wanted else None
    if size is not None and count is not None:
        gap = size - count
        # The code checks a dimension of several names, and the runtime one of a single name before it runs.
        checked = size.number is None and len(gap.names) > 1
        known = gap.number is not None or (gap.least is not None and gap.least >= 0)
        if not (known or checked or given.assume_positive(gap)):
            count = None
    return [(*shape[:axis], count, *shape[axis + 1 :])] * 2


def _pad(given: Given) -> list[Shape] | None:
    shape = given.shape()
    if shape is None:
        return None
    axes = given.numbers(3) if given.has(3) else list(range(len(shape)))
    pads: list[Size | None] | None
    if given.opset < 11:
        pads = [number(int(n)) for n in given.attribute("pads")]
    else:
        found = given.contents[1] if len(given.contents) > 1 else None
        pads = None if found is None else list(found.flat)
    if pads is None or axes is None:
        return [(None,) * len(shape)]
    dims = list(shape)
    for index, axis in enumerate(axes):
        size, before, after = dims[axis], pads[index], pads[index + len(axes)]
        dims[axis] = None if size is None or before is None or after is None else size + before + after
    return [tuple(dims)]


def _resize(given: Given) -> list[Shape] | None:
    shape = given.shape()
    if shape is None:
        return None
    dims = list(shape)
    axes = [int(a) % len(shape) for a in given.attribute("axes") or range(len(shape))]
    found: list[Size | None] | None = None
    if given.has(3):
        wanted = None if given.attribute("keep_aspect_ratio_policy", b"stretch") != b"stretch" else given.sizes(3)
        found = None if wanted is None else [*wanted]
    else:
        place = 2 if given.opset >= 11 else 1
        scales = given.constants[place] if place < len(given.constants) else None
        if scales is not None and scales.size == len(axes):
            found = [
                None if d is None else _scaled(d, float(s))
                for d, s in zip((dims[a] for a in axes), scales, strict=True)
            ]
    if found is None or len(found) != len(axes):
        found = [None] * len(axes)
    for axis, size in zip(axes, found, strict=True):
        dims[axis] = size
    return [tuple(dims)]


def _scaled(size: Size, scale: float) -> Size | None:
    """A size times a scale, rounded down; None unless the scale or its reciprocal is a whole number."""
    if size.number is not None:
        return number(math.floor(size.number * scale))
    if scale >= 1:
        return size * number(int(scale)) if scale.is_integer() else None
    parts = 1 / scale if scale > 0 else 0.0
    # Other reciprocals than those of powers of two are rounded, and their product with a multiple may be less than 1.
    return quotient(size, number(int(parts))) if parts and math.log2(parts).is_integer() else None


def _blocks(given: Given) -> list[Shape] | None:
    shape, size = given.shape(), number(given.attribute("blocksize"))
    if shape is None or len(shape) != 4 or None in shape:
        return None
    batch, channels, *space = (d for d in shape if d is not None)
    if given.node.op_type == "DepthToSpace":
        return [(batch, quotient(channels, size * size), *(d * size for d in space))]
    return [(batch, channels * size * size, *(quotient(d, size) for d in space))]


def _reduced(given: Given) -> list[Shape] | None:
    """Reductions along computed axes: the rank is known, if their number is."""
    shape, axes = given.shape(), given.shape(1)
    if shape is None or axes is None or not given.has(1) or given.numbers(1) is not None:
        return None
    count = axes[0].number if len(axes) == 1 and axes[0] is not None else None
    if given.attribute("keepdims", 1):
        return [(None,) * len(shape)]
    return [(None,) * (len(shape) - count)] if count is not None and 0 < count <= len(shape) else None


def _axes_added(given: Given) -> list[Shape] | None:
    """Unsqueeze and Squeeze by computed axes: the rank is known, if their number is."""
    shape, axes = given.shape(), given.shape(1)
    if shape is None or axes is None or not given.has(1) or given.numbers(1) is not None:
        return None
    count = axes[0].number if len(axes) == 1 and axes[0] is not None else None
    if not count:
        return None
    rank = len(shape) + (count if given.node.op_type == "Unsqueeze" else -count)
    return [(None,) * rank] if rank >= 0 else None


def _same(given: Given) -> list[Shape] | None:
    return [given.shape()]


def _affine_grid(given: Given) -> list[Shape] | None:
    """AffineGrid: the batch of the matrices, the spatial sizes, and the number of these."""
    theta, count = given.shape(), given.shape(1)
    rank = count[0].number if count is not None and count[0] is not None else None
    if theta is None or rank is None or rank < 3:
        return None
    wanted = given.sizes(1)
    space = [None] * (rank - 2) if wanted is None else wanted[2:]
    return [(theta[0], *space, number(rank - 2))]


def _col2im(given: Given) -> list[Shape] | None:
    data, image = given.shape(), given.shape(1)
    rank = image[0].number if image is not None and image[0] is not None else None
    if data is None or rank is None or len(data) != 3:
        return None
    wanted, block = given.sizes(1), given.sizes(2)
    taps = None if block is None else product_of(block)
    channels = quotient(data[1], taps) if data[1] is not None and taps is not None else None
    return [(data[0], channels, *([None] * rank if wanted is None else wanted))]


def _stft(given: Given) -> list[Shape] | None:
    data, window = given.shape(), given.shape(2)
    if data is None:
        return None
    step, length = given.numbers(1), given.sizes(3)
    size = length[0] if length is not None else None if given.has(3) or window is None else window[0]
    frames = bins = None
    if size is not None and size.number is not None:
        bins = number(size.number // 2 + 1 if given.attribute("onesided", 1) else size.number)
        if step is not None and data[1] is not None:
            frames = quotient(data[1] - size + number(step[0]), number(step[0]))
    return [(data[0], frames, bins, number(2))]


def _dft(given: Given) -> list[Shape] | None:
    """DFT along a known axis, whose length becomes that of the transform, or half of it; complex numbers."""
    shape = given.shape()
    axes = given.numbers(2) if given.has(2) else [given.attribute("axis", 1 if given.opset < 20 else -2)]
    length = given.sizes(1) if given.has(1) else None
    if shape is None or axes is None or (given.has(1) and length is None):
        return None
    halved, inverse = given.attribute("onesided", 0), given.attribute("inverse", 0)
    axis = axes[0] % len(shape)
    size = shape[axis] if length is None else length[0]
    if size is None or (halved and inverse):
        return None
    half = quotient(size, number(2)) if halved else None
    return [(*shape[:axis], half + number(1) if half is not None else size, *shape[axis + 1 : -1], number(2))]


_REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare".split()

_RULES: Mapping[str, Rule] = {
    **{f"Reduce{name}": _reduced for name in _REDUCTIONS},
    "MeanVarianceNormalization": _same,
    "AffineGrid": _affine_grid,
    "Col2Im": _col2im,
    "STFT": _stft,
    "DFT": _dft,
    "Unsqueeze": _axes_added,
    "Squeeze": _axes_added,
    "Slice": slice_shapes,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Tile": _tile,
    "Concat": _concat,
    "Split": _split,
    "Pad": _pad,
    "TopK": _top_k,
    "Conv": window_shapes,
    "ConvInteger": window_shapes,
    "QLinearConv": window_shapes,
    "MaxPool": window_shapes,
    "AveragePool": window_shapes,
    "LpPool": window_shapes,
    "ConvTranspose": transposed_shapes,
    "MaxUnpool": unpooled_shapes,
    "Resize": _resize,
    "Attention": standard_attention,
    "GroupNormalization": _same,
    "SimplifiedLayerNormalization": _same,
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
}
