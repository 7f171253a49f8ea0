"""Analysis of a kernel as a convolution of one or two dimensions, or of planes one behind the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate.epilogue import reads_in_epilogue
from heterocc.compiler.lower.cpu.generate.places import index, linear, shape_of
from heterocc.compiler.lower.cpu.generate.read import Kernel, Nest, Stage
from heterocc.compiler.lower.cpu.sizes import (
    Size,
    at_least,
    is_number,
    is_one,
    larger,
    moves,
    proved,
    same,
    size_of,
    smaller,
    typical,
)
from heterocc.compiler.lower.kernels.expressions import is_conditional


@dataclass(frozen=True, slots=True)
class Window:
    """One dimension: `size` inputs after `before` zeros, `taps` of the kernel, `places` of the output."""

    size: Size
    before: Size
    taps: int
    stride: int
    dilation: int
    places: Size

    @property
    def reach(self) -> int:
        """The distance between the first and the last tap."""
        return (self.taps - 1) * self.dilation

    @property
    def phases(self) -> range:
        """The remainders of the taps' places by the stride, in equal steps; inputs with others are not read."""
        remainders = [tap * self.dilation % self.stride for tap in range(self.taps)]
        return range(0, max(remainders) + 1, gcd(*remainders) or 1)

    def meeting(self, line: int, outputs: range) -> list[tuple[int, int]]:
        """The outputs, counted from the first of a tile, that read its input `line`, each with the tap that does."""
        ahead = [(output, line - output * self.stride) for output in outputs]
        return [(n, d // self.dilation) for n, d in ahead if 0 <= d <= self.reach and d % self.dilation == 0]

    @property
    def extent(self) -> Size:
        """Places of one phase that the outputs read."""
        return self.places + self.reach // self.stride

    @property
    def is_inside(self) -> bool:
        """Whether outputs of a known number read inputs only, and no zeros around them."""
        last = (self.places - 1) * self.stride + self.reach
        return same(self.before, 0) and not proved(at_least(last, self.size))


ONE = Window(1, 0, 1, 1, 1, 1)
"""A dimension that is not there."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """out[batch, channel, row, column], NCHW; `inputs` and `outputs` are the channels of one group.

    `data` is the argument's buffer, `weight` the number of the weight's argument. `loops` are the numbers of the
    loops over batch, channel, row and column; None for the row of a convolution of one dimension. One of three
    dimensions has planes, of which `depth` is the window and `deep` the number of the loop. If it is read as one of two
    (see `flattened`), `planes` is this window, and `depth` is left out.
    """

    data: tirx.Buffer
    weight: int
    batch: Size
    groups: int
    inputs: int
    outputs: int
    rows: Window
    columns: Window
    loops: tuple[int, int, int | None, int]
    depth: Window = ONE
    deep: int | None = None
    planes: Window = ONE

    @property
    def flattened(self) -> Convolution:
        """The convolution as one of at most two dimensions.

        Each plane of outputs of an image is an image, and each plane of a channel that it reads a channel, so that
        weights keep their order.
        """
        depth = self.depth
        batch, inputs = self.batch * depth.places, self.inputs * depth.taps
        return self if self.deep is None else replace(self, batch=batch, inputs=inputs, depth=ONE, planes=depth)

    @property
    def usual_images(self) -> int:
        """The number of groups of images, as far as models of time assume it of a batch of any size."""
        return typical(self.batch) * self.groups

    @property
    def is_flattened(self) -> bool:
        """Whether images and channels are planes of a convolution of three dimensions."""
        return self.deep is not None and self.planes is not ONE

    def plane_of(self, channel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr | None]:
        """The number of the plane of `data` that an input channel is, counted through all groups and images.

        And whether it is not in the padding, if some are.
        """
        if not self.is_flattened:
            return channel, None
        planes = self.planes
        group, input_ = tirx.floordiv(channel, index(self.inputs)), tirx.floormod(channel, index(self.inputs))
        output, group = tirx.floordiv(group, index(self.groups)), tirx.floormod(group, index(self.groups))
        image, place = tirx.floordiv(output, index(planes.places)), tirx.floormod(output, index(planes.places))
        above = (image * index(self.groups) + group) * index(self.inputs // planes.taps)
        above = above + tirx.floordiv(input_, index(planes.taps))
        tap = tirx.floormod(input_, index(planes.taps))
        plane = place * index(planes.stride) + tap * index(planes.dilation) - index(planes.before)
        exists = None if planes.is_inside else tirx.all(plane >= index(0), plane < index(planes.size))
        return above * index(planes.size) + plane, exists

    def image_loops(self, image: tirx.Expr) -> list[tuple[int, tirx.Expr]]:
        """The numbers of the loops that make up images, with their values for one of them."""
        if not self.is_flattened or self.deep is None:
            return [(self.loops[0], image)]
        places = index(self.planes.places)
        return [(self.loops[0], tirx.floordiv(image, places)), (self.deep, tirx.floormod(image, places))]

    @property
    def taps(self) -> int:
        """The number of taps of the kernel."""
        return self.depth.taps * self.rows.taps * self.columns.taps

    @property
    def work(self) -> Size:
        """The number of multiply-adds."""
        places = self.depth.places * self.rows.places * self.columns.places
        return self.batch * self.groups * self.outputs * self.inputs * self.taps * places


def find_convolution(kernel: Kernel) -> Convolution | None:
    """Read a kernel as a convolution of one to three dimensions with a constant kernel, None if it is not one."""
    conv = _convolution(kernel, kernel.left, kernel.right)
    return _convolution(kernel, kernel.right, kernel.left) if conv is None else conv


def find_planes(kernel: Kernel) -> Convolution | None:
    """Read a kernel as a convolution of one or two dimensions, or as one of fixed sizes of three that is flattened."""
    conv = find_convolution(kernel)
    if conv is None or (conv.deep is not None and not all(map(is_number, kernel.extents))):
        return None
    return conv.flattened


def _convolution(kernel: Kernel, data: TensorLoad, weight: TensorLoad) -> Convolution | None:
    rank = len(weight.indices)
    places, terms, loops = kernel.places, kernel.terms, kernel.loops
    if rank not in (3, 4, 5) or len(places) != rank or len(terms) != rank - 1 or len(data.indices) != rank:
        return None
    argument = kernel.argument(weight.source)
    order = [places[1], *terms]
    same = all(i.same_as(loops[n]) for i, n in zip(weight.indices, order, strict=True))
    if argument not in kernel.weights or argument is None or not same or reads_in_epilogue(kernel, weight.source):
        return None
    padded = padding(kernel, data)
    if padded is None or not data.indices[0].same_as(loops[places[0]]):
        return None
    source, before = padded
    shape = shape_of(source)
    inputs, outputs = kernel.extents[terms[0]], kernel.extents[places[1]]
    if shape is None or before[:2] != (0, 0) or not (is_number(shape[1]) and is_number(inputs) and is_number(outputs)):
        return None
    if shape[1] % inputs:
        return None
    groups = shape[1] // inputs
    if outputs % groups:
        return None
    first = tirx.floordiv(loops[places[1]], index(outputs // groups)) * index(inputs) if groups > 1 else index(0)
    channels = [first + loops[terms[0]], *([first] if inputs == 1 else [])]
    if not any(tvm_ffi.structural_equal(data.indices[1], channel) for channel in channels):
        return None
    windows = [ONE] * (5 - rank)
    for dim in range(2, rank):
        window = read_window(kernel, data.indices[dim], places[dim], terms[dim - 1], shape[dim], before[dim])
        if window is None:
            return None
        windows.append(window)
    depth, rows, columns = windows
    return Convolution(
        source,
        argument,
        kernel.extents[places[0]],
        groups,
        inputs,
        outputs // groups,
        rows,
        columns,
        (places[0], places[1], places[-2] if rank > 3 else None, places[-1]),
        depth,
        places[2] if rank == 5 else None,
    )


def read_window(kernel: Nest, expr: tirx.Expr, place: int, tap: int, size: Size, before: Size) -> Window | None:
    """An index as stride · place + dilation · tap of a row of `size` inputs after those `before`; loops by numbers."""
    form = linear(expr, kernel.loops)
    if form is None or moves(form.constant) or any(moves(s) for n, s in enumerate(form.steps) if n not in (place, tap)):
        return None
    stride, dilation, taps = form.steps[place], form.steps[tap], kernel.extents[tap]
    if not (is_number(stride) and is_number(dilation) and is_number(taps)):
        return None
    stride = max(1, stride) if is_one(kernel.extents[place]) else stride
    dilation = max(1, dilation) if taps == 1 else dilation
    if stride < 1 or dilation < 1:
        return None
    return Window(size, before, taps, stride, dilation, kernel.extents[place])


def padding(kernel: Nest, data: TensorLoad, fill: float = 0.0) -> tuple[tirx.Buffer, tuple[Size, ...]] | None:
    """The argument that a load reads with `fill` around it, and how many of these come first in each dimension."""
    if kernel.argument(data.source) is not None:
        return data.source, (0,) * len(data.indices)
    stage = kernel.stage(data.source)
    if stage is None:
        return None
    value, condition = stage.value, None
    if is_conditional(value):
        condition, value, otherwise = value.args
        if not (isinstance(otherwise, tirx.FloatImm) and float(otherwise.value) == fill):
            return None
    if not isinstance(value, TensorLoad) or kernel.argument(value.source) is None:
        return None
    forms = [linear(i, stage.iters) for i in value.indices]
    shape = shape_of(value.source)
    if shape is None or len(forms) != len(stage.iters):
        return None
    before = []
    for dim, form in enumerate(forms):
        if form is None or form.steps != tuple(int(n == dim) for n in range(len(forms))):
            return None
        before.append(-form.constant)
    inside = _bounds(stage, condition)
    padded = shape_of(stage.buffer)
    if inside is None or padded is None:
        return None
    for zeros, size, total, (first, end) in zip(before, shape, padded, inside, strict=True):
        last = total if end is None else smaller(end, total)
        if not (same(larger(first, 0), zeros) and same(last, smaller(zeros + size, total))):
            return None
    return value.source, tuple(before)


def _bounds(stage: Stage, condition: tirx.Expr | None) -> list[tuple[Size, Size | None]] | None:
    """The range of each dimension in which a condition on a stage's iteration variables holds; None for no end."""
    bounds: list[tuple[Size, Size | None]] = [(0, None) for _ in stage.iters]
    single: list[tuple[Size, ...]] = [tuple(int(n == dim) for n in range(len(bounds))) for dim in range(len(bounds))]
    for part in _conjuncts(condition):
        from_below = isinstance(part, tirx.LE) and isinstance(part.a, tirx.IntImm)
        limit = size_of(part.a if from_below else part.b) if isinstance(part, tirx.LT | tirx.LE) else None
        form = None if limit is None else linear(part.b if from_below else part.a, stage.iters)
        if limit is None or form is None or form.steps not in single:
            return None
        dim, limit = single.index(form.steps), limit - form.constant
        first, known = bounds[dim]
        if from_below:
            bounds[dim] = (larger(first, limit), known)
        else:
            end = limit + isinstance(part, tirx.LE)
            bounds[dim] = (first, end if known is None else smaller(known, end))
    return bounds


def _conjuncts(condition: tirx.Expr | None) -> Iterator[tirx.Expr]:
    if isinstance(condition, tirx.And):
        yield from _conjuncts(condition.a)
        yield from _conjuncts(condition.b)
    elif condition is not None:
        yield condition
