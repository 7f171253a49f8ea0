"""Resize of dimensions without a fixed size: source positions are computed with each output."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.resize.positions import (
    BY_RATIO,
    Region,
    cubic_shares,
    is_outside,
    nearest,
    rounding,
    share,
    source,
    weight,
)
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import Extent

Ratio = Callable[[Sequence[te.Tensor], Sequence[tirx.Expr]], tirx.Expr]
"""The ratio of output to input of an axis, in float32, from the tensors of a resize and the data's dimensions."""

Tensors = list[te.Tensor]
Exprs = list[tirx.Expr]

_MOST_TAPS = 16
"""The most taps of a filter that are written out for each element."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis that is resized to `size` elements.

    `ratio` is that of output to input, None for that of the sizes. `region` gives the part that tf_crop_and_resize
    reads, from the same tensors as a computed ratio.
    """

    axis: int
    size: Extent
    ratio: float | Ratio | None = None
    region: Callable[[Sequence[te.Tensor]], Region] | None = None

    def ratio_of(self, given: Sequence[te.Tensor], dims: Sequence[tirx.Expr], out: tirx.Expr) -> tirx.Expr:
        """The ratio; `dims` are the dimensions of the data and of the result."""
        if self.ratio is None:
            return out.astype("float32") / dims[self.axis].astype("float32")
        if not callable(self.ratio):
            return tirx.const(self.ratio, "float32")
        return tirx.Select(_same(dims), tirx.const(1.0, "float32"), self.ratio(given, dims))

    def region_of(self, given: Sequence[te.Tensor], dims: Sequence[tirx.Expr]) -> Region | None:
        """The region that is read; all of the data if the result has its shape."""
        if self.region is None:
            return None
        (start, end), same = self.region(given), _same(dims)
        return tuple(tirx.Select(same, tirx.const(n, "float32"), e) for n, e in ((0.0, start), (1.0, end)))


def _same(dims: Sequence[tirx.Expr]) -> tirx.Expr:
    """Whether the result has the shape of the data: ONNX Runtime copies it then, whatever the scales and the region."""
    rank = len(dims) // 2
    return tirx.all(*(a == b for a, b in zip(dims[:rank], dims[rank:], strict=True)))


def resize_sized(ctx: Context, data: relax.Expr, scales: list[float] | None, attrs: Mapping[str, Any]) -> relax.Expr:
    """Resize all axes whose size changes, one after the other, to the shape of the node's output.

    `scales` are the ratios of output to input for each of the node's axes, None for those of the sizes.
    """
    wanted, given = ctx.result(), dims_of(data)
    axes = []
    for place, axis in enumerate(axes_of(attrs, rank_of(data))):
        size = wanted[axis]
        ratio = None if scales is None else scales[place]
        if ratio == 1 or (ratio is None and (given[axis] is size or str(given[axis]) == str(size))):
            continue
        axes.append(Axis(axis, size, ratio))
    return resample(ctx, data, axes, [], attrs)


def axes_of(attrs: Mapping[str, Any], rank: int) -> list[int]:
    """The axes of a Resize, in the order of its scales or sizes."""
    return [int(a) % rank for a in attrs.get("axes") or range(rank)]


def resample(
    ctx: Context, data: relax.Expr, axes: Sequence[Axis], tensors: Sequence[relax.Expr], attrs: Mapping[str, Any]
) -> relax.Expr:
    """Resize axes one after the other; `tensors` are those from which ratios and regions are computed."""
    nearest_only = attrs.get("mode", "nearest") == "nearest"
    value, rounded = data, not nearest_only and not dtype_of(data).startswith(("f", "bf"))
    if nearest_only and not any(isinstance(a.ratio, int | float) for a in axes):
        axes = axes[::-1]  # elements that a table selects take longer than whole rows, of which there will be more
    if rounded:  # between the axes the values are not rounded
        value = ctx.bb.emit(relax.op.astype(value, "float32"))
    dims = [*dims_of(data), *ctx.result()]
    for axis in axes:
        value = _Along(ctx, value, axis, tensors, dims, attrs).resized()
    if rounded:
        value = relax.op.astype(relax.op.round(value), dtype_of(data))
    return value


@dataclass(frozen=True)
class _Along:
    """The resizing of one axis of `data`; `dims` are the dimensions before and after the resizing of all axes."""

    ctx: Context
    data: relax.Expr
    axis: Axis
    tensors: Sequence[relax.Expr]
    dims: Sequence[Extent]
    attrs: Mapping[str, Any]

    def resized(self) -> relax.Expr:
        mode = self.attrs.get("mode", "nearest")
        if mode == "nearest":
            name = self.attrs.get("nearest_mode", "round_prefer_floor")
            ratio = self.axis.ratio
            if name != BY_RATIO or isinstance(ratio, int | float):
                name = rounding(name, 1.0 if callable(ratio) or ratio is None else ratio)
            made = (form(name) for form in (self._repeated, self._spaced, self._nearest))
            found = next(value for value in made if value is not None)
        elif mode not in ("linear", "cubic"):
            raise NotImplementedError(f"mode {mode}")
        elif self.attrs.get("antialias", 0):
            found = self._filtered()
        elif mode == "linear" and not self.attrs.get("exclude_outside", 0):
            spaced = self._spaced()
            found = self._linear() if spaced is None else spaced
        else:
            found = self._cubic() if mode == "cubic" else self._filtered()
        return self._with_outside(found)

    # ---- tables along the axis --------------------------------------------------------------------------------------

    def _source(self, y: tirx.Expr, given: Sequence[te.Tensor], dims: Exprs, out: tirx.Expr) -> tirx.Expr:
        region, ratio = self.axis.region_of(given, dims), self.axis.ratio_of(given, dims, out)
        return source(y, dims[self.axis.axis], out, ratio, region, self.attrs)

    def _table(self, rule: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr], dtype: str) -> relax.Expr:
        """A number for each place along the axis, by a rule for its position in the input, the length and the ratio."""

        def compute(given: Tensors, dims: Exprs, wanted: Exprs) -> te.Tensor:
            def at(y: tirx.Var) -> tirx.Expr:
                ratio = self.axis.ratio_of(given, dims, wanted[0])
                return rule(self._source(y, given, dims, wanted[0]), dims[self.axis.axis], ratio).astype(dtype)

            return te.compute(wanted, at, name="places")

        return self._emit(compute, self.tensors, [self.axis.size], dtype, "resize_places")

    def _emit(
        self,
        compute: Callable[[Tensors, Exprs, Exprs], te.Tensor],
        tensors: Sequence[relax.Expr],
        shape: Sequence[Extent],
        dtype: str,
        name: str,
    ) -> relax.Expr:
        dims = list(self.dims) if name == "resize_places" else []
        return emit_sized(self.ctx.bb, compute, tensors, dims, shape, dtype, name)

    # ---- results ----------------------------------------------------------------------------------------------------

    @property
    def _shape(self) -> list[Extent]:
        return [self.axis.size if d == self.axis.axis else n for d, n in enumerate(dims_of(self.data))]

    def _mixed(self, at: Callable[..., tirx.Expr], tables: Sequence[relax.Expr]) -> relax.Expr:
        """The result, element by element: `at(read, i, tables)`, where `read(i, place)` reads a place of the axis."""
        axis, dtype = self.axis.axis, dtype_of(self.data)

        def compute(tensors: Tensors, _: Exprs, wanted: Exprs) -> te.Tensor:
            x, *rest = tensors

            def read(i: Sequence[tirx.Var], place: tirx.Expr) -> tirx.Expr:
                last = x.shape[axis] - tirx.const(1, "int64")
                inside = tirx.max(tirx.min(place, last), tirx.const(0, "int64"))
                return x(*(inside if d == axis else v for d, v in enumerate(i)))

            made = te.compute(wanted, lambda *i: at(read, i, rest), name="resize")
            return (
                made if made.dtype == dtype else te.compute(wanted, lambda *i: made(*i).astype(dtype), name="resized")
            )

        return self._emit(compute, [self.data, *tables], self._shape, dtype, "resize")

    def _repeated(self, rounding: str) -> relax.Expr | None:
        """The result for a whole scale that repeats each element: `y // scale` is the nearest one without rounding."""
        scale, axis = self.axis.ratio, self.axis.axis
        if not isinstance(scale, int | float) or scale <= 1 or scale != int(scale) or self.axis.region is not None:
            return None
        coordinates = self.attrs.get("coordinate_transformation_mode", "half_pixel")
        halves = coordinates in ("half_pixel", "half_pixel_symmetric") and rounding.startswith("round")
        if not halves and not (coordinates == "asymmetric" and rounding == "floor"):
            return None
        times = tirx.const(int(scale), "int64")

        def compute(tensors: Tensors, _: Exprs, wanted: Exprs) -> te.Tensor:
            def at(*i: tirx.Var) -> tirx.Expr:
                return tensors[0](*(tirx.floordiv(v, times) if d == axis else v for d, v in enumerate(i)))

            return te.compute(wanted, at, name="resize")

        return self._emit(compute, [self.data], self._shape, dtype_of(self.data), "resize")

    def _spaced(self, rounding: str | None = None) -> relax.Expr | None:
        """The result for a scale of a half, a quarter and so on: the elements that it reads are equally far apart.

        With `rounding` the nearest element, else the mean of two by their distances.
        """
        scale, axis = self.axis.ratio, self.axis.axis
        if not isinstance(scale, int | float) or not 0 < scale < 1 or self.axis.region is not None:
            return None
        apart = round(1 / scale)
        if apart * scale != 1 or apart & (apart - 1):  # quotients by other scales are rounded
            return None
        coordinates = self.attrs.get("coordinate_transformation_mode", "half_pixel")
        if coordinates not in ("half_pixel", "pytorch_half_pixel", "asymmetric"):
            return None
        centred = coordinates != "asymmetric"
        up = rounding in ("ceil", "round_prefer_ceil")
        first = 0 if not centred else apart // 2 if up else apart // 2 - 1
        dtype, work = dtype_of(self.data), _work(dtype_of(self.data))
        half = tirx.const(0.5, work)

        def compute(tensors: Tensors, _: Exprs, wanted: Exprs) -> te.Tensor:
            def at(*i: tirx.Var) -> tirx.Expr:
                def read(place: tirx.Expr) -> tirx.Expr:
                    return tensors[0](*(place if d == axis else v for d, v in enumerate(i)))

                start, one = tirx.const(first, "int64"), tirx.const(1, "int64")
                part = half
                if coordinates == "pytorch_half_pixel":  # a single element is the first
                    several = wanted[axis] > one
                    start = tirx.Select(several, start, tirx.const(0, "int64"))
                    part = tirx.Select(several, half, tirx.const(0.0, work))
                place = i[axis] * tirx.const(apart, "int64") + start
                if rounding is not None or not centred:
                    return read(place)
                low, high = read(place).astype(work), read(place + one).astype(work)
                return (low * (tirx.const(1.0, work) - part) + high * part).astype(dtype)

            return te.compute(wanted, at, name="resize")

        return self._emit(compute, [self.data], self._shape, dtype, "resize")

    def _nearest(self, mode: str) -> relax.Expr:
        places = self._table(lambda x, _, ratio: nearest(x, mode, ratio), "int64")
        return self._mixed(lambda read, i, tables: read(i, tables[0](i[self.axis.axis])), [places])

    def _linear(self) -> relax.Expr:
        first, shares = (
            self._table(lambda x, *_: tirx.floor(x), "int64"),
            self._table(lambda x, *_: share(x), "float32"),
        )
        work = _work(dtype_of(self.data))

        def at(read: Callable[..., tirx.Expr], i: Sequence[tirx.Var], tables: Sequence[te.Tensor]) -> tirx.Expr:
            place, part = tables[0](i[self.axis.axis]), tables[1](i[self.axis.axis]).astype(work)
            low, high = read(i, place), read(i, place + tirx.const(1, "int64"))
            return low.astype(work) * (tirx.const(1, work) - part) + high.astype(work) * part

        return self._mixed(at, [first, shares])

    def _cubic(self) -> relax.Expr:
        first = self._table(lambda x, *_: tirx.floor(x) - tirx.const(1, "float32"), "int64")
        shares = [
            self._table(lambda x, n, _, tap=tap: cubic_shares(x, n, self.attrs)[tap], "float32")  # type: ignore[misc]
            for tap in range(4)
        ]
        work = _work(dtype_of(self.data))

        def at(read: Callable[..., tirx.Expr], i: Sequence[tirx.Var], tables: Sequence[te.Tensor]) -> tirx.Expr:
            y, total = i[self.axis.axis], None
            for tap, shares in enumerate(tables[1:]):
                place = tables[0](y) + tirx.const(tap, "int64")
                part = read(i, place).astype(work) * shares(y).astype(work)
                total = part if total is None else total + part
            return total

        return self._mixed(at, [first, *shares])

    def _filtered(self) -> relax.Expr:
        """The result by a filter of so many taps as are needed: few are written out, more are a sum."""
        axis, dtype, ratio = self.axis.axis, dtype_of(self.data), self.axis.ratio
        work, length = _work(dtype), dims_of(self.data)[axis]
        half: Extent = 1 if self.attrs.get("mode") == "linear" else 2
        if self.attrs.get("antialias", 0) and isinstance(ratio, int | float):
            half = math.ceil(half / min(ratio, 1.0))
        elif self.attrs.get("antialias", 0):
            # The size of a result is at most that of the data times the ratio, but for a region of it.
            half *= length if self.axis.region is not None else (length + self.axis.size - 1) // self.axis.size
        shape = [2 * half, self.axis.size]

        def weights(given: Tensors, dims: Exprs, wanted: Exprs) -> te.Tensor:
            def at(k: tirx.Var, y: tirx.Var) -> tirx.Expr:
                x = self._source(y, given, dims, wanted[1])
                return weight(
                    x, _tap(x, k, wanted[0]), dims[axis], self.axis.ratio_of(given, dims, wanted[1]), self.attrs
                )

            return te.compute(wanted, at, name="weights")

        def shares(given: Tensors, _: Exprs, wanted: Exprs) -> te.Tensor:
            k = te.reduce_axis((0, wanted[0]), name="k")
            sums = te.compute([wanted[1]], lambda y: te.sum(given[0](k.var, y), axis=[k]), name="sums")
            return te.compute(wanted, lambda k, y: given[0](k, y) / sums(y), name="shares")

        found = self._emit(weights, self.tensors, shape, "float32", "resize_places")
        found = self._emit(shares, [found], shape, "float32", "resize_shares")
        middle = self._table(lambda x, *_: tirx.ceil(x), "int64")
        taps = shape[0]

        def at(read: Callable[..., tirx.Expr], i: Sequence[tirx.Var], tables: Sequence[te.Tensor]) -> tirx.Expr:
            def part(k: tirx.Expr) -> tirx.Expr:
                place = tables[1](i[axis]) + k - tirx.floordiv(tables[0].shape[0], tirx.const(2, "int64"))
                return read(i, place).astype(work) * tables[0](k, i[axis]).astype(work)

            if isinstance(taps, int) and taps <= _MOST_TAPS:
                return functools.reduce(operator.add, (part(tirx.const(k, "int64")) for k in range(taps)))
            k = te.reduce_axis((0, tables[0].shape[0]), name="k")
            return te.sum(part(k.var), axis=[k])

        return self._mixed(at, [found, middle])

    def _with_outside(self, found: relax.Expr) -> relax.Expr:
        """The extrapolation value where tf_crop_and_resize reads outside the data."""
        if self.axis.region is None:
            return found
        flags = self._table(lambda x, n, _: is_outside(x, n), "int8")
        axis, dtype = self.axis.axis, dtype_of(self.data)
        fill = tirx.const(float(self.attrs.get("extrapolation_value", 0.0)), "float32")

        def compute(tensors: Tensors, _: Exprs, wanted: Exprs) -> te.Tensor:
            def at(*i: tirx.Var) -> tirx.Expr:
                out = tensors[1](i[axis]) != tirx.const(0, "int8")
                return tirx.Select(out, fill.astype(dtype), tensors[0](*i))

            return te.compute(wanted, at, name="extrapolated")

        return self._emit(compute, [found, flags], self._shape, dtype, "resize")


def _tap(x: tirx.Expr, number: tirx.Expr, taps: tirx.Expr) -> tirx.Expr:
    """The place of a tap of a filter at a position."""
    return tirx.ceil(x).astype("int64") - tirx.floordiv(taps, tirx.const(2, "int64")) + number


def _work(dtype: str) -> str:
    return dtype if dtype in ("float32", "float64") else "float32"
