"""Resize by sizes, scales or a region that are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from heterocc.compiler.lower.converters.attributes import Attributes
from heterocc.compiler.lower.converters.computed.numbers import LARGEST, element, results, sizes, vector, whole
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.resize.positions import BY_RATIO, CROP, Region
from heterocc.compiler.lower.converters.resize.sized import Axis, Ratio, axes_of, resample
from heterocc.compiler.lower.converters.values import dims_of, rank_of
from heterocc.compiler.lower.variables import as_int64

Given = Sequence[Any]
"""The buffers or tensors of a kernel."""


def attributes(ctx: Context) -> Attributes:
    """The node's attributes, with strings decoded, in the form of operator set 11 or later."""
    found = {k: v.decode() if isinstance(v, bytes) else v for k, v in ctx.attrs.items()}
    if ctx.opset < 11:
        found |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": BY_RATIO}
    return ctx.attrs.changed(found)


def _count(value: relax.Expr | None) -> int | tirx.Expr:
    """The number of elements; 0 for an absent input."""
    return 0 if value is None else dims_of(value)[0]


def _number(tensor: Any, place: int) -> tirx.Expr:
    return tensor[(whole(place),)].astype("float32")


def _by_policy(policy: str, wanted: Callable[[Given, int], tirx.Expr], axes: Sequence[int]) -> Ratio:
    """The ratio of all axes that keeps their aspect; `wanted(given, place)` are the wanted sizes."""

    def ratio(given: Given, dims: Sequence[tirx.Expr]) -> tirx.Expr:
        found: tirx.Expr | None = None
        for place, axis in enumerate(axes):
            one = wanted(given, place) / as_int64(dims[axis]).astype("float32")
            rule = tirx.min if policy == "not_larger" else tirx.max
            found = one if found is None else rule(found, one)
        return found

    return ratio


class _Request:
    """The inputs of a Resize that its kernels read, and the ratio of each axis; None for that of its sizes."""

    def __init__(
        self,
        ctx: Context,
        data: relax.Expr,
        roi: relax.Expr | None,
        scales: relax.Expr | None,
        wanted: relax.Expr | None,
    ) -> None:
        self.attrs = attributes(ctx)
        self.axes = axes_of(self.attrs, rank_of(data))
        if _count(scales) == 0:
            scales = None
        given = scales if scales is not None else wanted
        if given is None or _count(given) != len(self.axes):
            raise NotImplementedError("the number of scales or sizes is not that of the axes")
        self.policy = self.attrs.get("keep_aspect_ratio_policy", "stretch")
        self.crops = self.attrs.get("coordinate_transformation_mode") == CROP
        self.by_scales = scales is not None
        self.tensors = [given]
        if self.crops:
            if roi is None or _count(roi) != 2 * len(self.axes):
                raise NotImplementedError("the region has not two numbers for each axis")
            self.tensors.append(roi)
        self._known = [np.asarray(ctx.known(t), np.float32) if ctx.is_known(t) else None for t in self.tensors]

    @property
    def read(self) -> list[relax.Expr]:
        """The tensors that kernels read: none if all are known."""
        return [] if all(known is not None for known in self._known) else self.tensors

    def _value(self, given: Given, input_: int, at: int, place: int) -> tirx.Expr:
        """A number of an input, which is tensor `at` of a kernel unless it is known."""
        known = self._known[input_]
        return _number(given[at], place) if known is None else tirx.const(float(known[place]), "float32")

    def ratio(self, place: int, at: int = 0) -> Ratio | None:
        """The ratio of an axis; tensor `at` of a kernel has the scales or sizes."""
        if self.by_scales:
            return lambda given, _: self._value(given, 0, at, place)
        if self.policy == "stretch":
            return None
        return _by_policy(self.policy, lambda given, axis: self._value(given, 0, at, axis), self.axes)

    def region(self, place: int) -> Callable[[Given], Region] | None:
        """The part of an axis that is read."""
        if not self.crops:
            return None
        return lambda given: (self._value(given, 1, 1, place), self._value(given, 1, 1, place + len(self.axes)))

    def length(self, ins: Given, place: int) -> tirx.Expr:
        """The size of a resized axis; `ins` are the data, and the scales or sizes."""
        ratio, dims = self.ratio(place, at=1), ins[0].shape
        if ratio is None:
            return element(ins[1], place)
        size = dims[self.axes[place]].astype("float32") * ratio(ins, dims)
        return tirx.floor(size if self.by_scales else size + tirx.const(0.5, "float32")).astype("int64")

    def demands(self, ins: Given) -> list[tuple[tirx.Expr, str]]:
        """What the scales or the sizes have to meet; `ins` are as for `length`."""
        if not self.by_scales:
            sizes = [(element(ins[1], place), ins[0].shape[axis]) for place, axis in enumerate(self.axes)]
            right = [tirx.any(size > whole(0), tirx.all(size == whole(0), old == 0)) for size, old in sizes]
            filled = [tirx.any(size == whole(0), old > 0) for size, old in sizes]
            return [
                (tirx.all(*right), "a size is not more than 0"),
                (tirx.all(*filled), "a size of the data is 0, and that of the result is not"),
            ]
        most, zero = tirx.const(float(LARGEST), "float32"), tirx.const(0.0, "float32")
        scales = [self._value(ins, 0, 1, place) for place in range(len(self.axes))]
        return [
            (tirx.all(*(scale > zero for scale in scales)), "a scale is not more than 0"),
            (tirx.all(*(scale <= most for scale in scales)), f"a scale is larger than {LARGEST}, the limit"),
        ]


@sizes("Resize", "Upsample")
def _sizes(
    ctx: Context,
    data: relax.Expr,
    roi: relax.Expr | None = None,
    scales: relax.Expr | None = None,
    wanted: relax.Expr | None = None,
) -> relax.Expr:
    if ctx.opset < 11:
        roi, scales = None, roi
    request = _Request(ctx, data, roi, scales, wanted)

    def numbers(ins: Given) -> list[tirx.Expr]:
        found = [d.astype("int64") for d in ins[0].shape]
        for place, axis in enumerate(request.axes):
            found[axis] = request.length(ins, place)
        return found

    return vector(ctx, [data, request.tensors[0]], rank_of(data), numbers, request.demands)


@results("Resize", "Upsample")
def resize_computed(
    ctx: Context,
    data: relax.Expr,
    roi: relax.Expr | None = None,
    scales: relax.Expr | None = None,
    wanted: relax.Expr | None = None,
) -> relax.Expr:
    """Resize to the shape of the node's output, with positions computed from the inputs."""
    if ctx.opset < 11:
        roi, scales = None, roi
    request = _Request(ctx, data, roi, scales, wanted)
    shape = ctx.result()
    axes = [
        Axis(axis, shape[axis], request.ratio(place), request.region(place))
        for place, axis in enumerate(request.axes)
        if request.crops or request.by_scales or str(shape[axis]) != str(dims_of(data)[axis])
    ]
    return resample(ctx, data, axes, request.read, request.attrs)
