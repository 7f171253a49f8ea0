"""Positions and weights of Resize as expressions of sizes: in float32 and in ONNX Runtime's order of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx

HALFWAY = 1e-6
"""Positions this close to halfway between two pixels count as halfway, as observed of ONNX Runtime 1.31."""

Region = tuple[tirx.Expr, tirx.Expr]
"""The start and the end of what tf_crop_and_resize reads, as parts of the last place."""

CROP = "tf_crop_and_resize"

BY_RATIO = "by ratio"
"""The only `nearest_mode` before operator set 11: `ceil` along axes that become shorter, `floor` along others."""

NEAREST: Mapping[str, Callable[[tirx.Expr], tirx.Expr]] = {
    "floor": tirx.floor,
    "ceil": tirx.ceil,
    "round_prefer_floor": lambda x: tirx.ceil(x - _f(0.5 + HALFWAY)),
    "round_prefer_ceil": lambda x: tirx.floor(x + _f(0.5 + HALFWAY)),
}
"""Rounding to a place, by `nearest_mode`."""


def rounding(mode: str, ratio: float) -> str:
    """The `nearest_mode` for an axis of this ratio of output to input. Raises NotImplementedError for unknown ones."""
    found = ("ceil" if ratio < 1 else "floor") if mode == BY_RATIO else mode
    if found not in NEAREST:
        raise NotImplementedError(f"nearest_mode {mode}")
    return found


def nearest(x: tirx.Expr, mode: str, ratio: tirx.Expr) -> tirx.Expr:
    """The place nearest to a position, for an axis whose ratio may be known only at run time."""
    if mode == BY_RATIO:
        return tirx.Select(ratio < _f(1.0), tirx.ceil(x), tirx.floor(x))
    return NEAREST[mode](x)


def source(
    y: tirx.Expr, length: tirx.Expr, out: tirx.Expr, ratio: tirx.Expr, region: Region | None, attrs: Mapping[str, Any]
) -> tirx.Expr:
    """The position in the input of output `y`."""
    mode = attrs.get("coordinate_transformation_mode", "half_pixel")
    # The larger of a place and 0 is the place, and hides from TVM's simplifier that a quotient is of integers.
    place, half, one = tirx.max(y.astype("float32"), _f(0.0)), _f(0.5), tirx.const(1, "int64")
    last = (length - one).astype("float32")
    if mode == CROP:
        if region is None:
            raise NotImplementedError(f"{CROP} needs a region")
        start, end = region
        step = place * (end - start) * last / tirx.max((out - one).astype("float32"), _f(1.0))
        return tirx.Select(out > one, start * last + step, half * (start + end) * last)
    if mode == "asymmetric":
        return place / ratio
    centred = (place + half) / ratio
    if mode == "half_pixel":
        return centred - half
    if mode == "tf_half_pixel_for_nn":
        return centred
    if mode == "pytorch_half_pixel":
        return tirx.Select(out > one, centred - half, _f(0.0))
    whole = length.astype("float32")
    if mode == "half_pixel_symmetric":
        offset = whole / _f(2.0) * (_f(1.0) - out.astype("float32") / (ratio * whole))
        return offset + centred - half
    if mode == "align_corners":
        return tirx.Select(out > one, place * last / tirx.max((out - one).astype("float32"), _f(1.0)), _f(0.0))
    raise NotImplementedError(f"coordinate_transformation_mode {mode}")


def is_outside(x: tirx.Expr, length: tirx.Expr) -> tirx.Expr:
    """Whether a position is outside the data."""
    last = (length - tirx.const(1, "int64")).astype("float32")
    return tirx.any(x < _f(0.0), x > last)


def share(x: tirx.Expr) -> tirx.Expr:
    """The part of a position behind its floor, of its bits: TVM's simplifier takes quotients of floats for integers."""
    plain = tirx.reinterpret("float32", tirx.reinterpret("int32", x))
    return plain - tirx.floor(plain)


def cubic_shares(x: tirx.Expr, length: tirx.Expr, attrs: Mapping[str, Any]) -> list[tirx.Expr]:
    """The weights of the four elements around a position, the first of which is one before its floor."""
    part = share(x)
    found = [_cubic(d, attrs) for d in (part + _f(1.0), part, _f(1.0) - part, _f(2.0) - part)]
    if attrs.get("exclude_outside", 0):
        first = tirx.floor(x).astype("int64") - tirx.const(1, "int64")
        places = [first + tirx.const(tap, "int64") for tap in range(4)]
        found = [
            tirx.Select(tirx.all(p >= tirx.const(0, "int64"), p < length), w, _f(0.0))
            for p, w in zip(places, found, strict=True)
        ]
        total = found[0] + found[1] + found[2] + found[3]
        found = [w / total for w in found]
    return found


def _cubic(distance: tirx.Expr, attrs: Mapping[str, Any]) -> tirx.Expr:
    """Keys' cubic convolution kernel with the free parameter `cubic_coeff_a`."""
    a = float(attrs.get("cubic_coeff_a", -0.75))
    d = distance
    near = ((_f(a + 2) * d - _f(a + 3)) * d) * d + _f(1.0)
    far = ((d - _f(5.0)) * d + _f(8.0)) * d * _f(a) - _f(4.0 * a)
    return tirx.Select(d <= _f(1.0), near, tirx.Select(d < _f(2.0), far, _f(0.0)))


def weight(x: tirx.Expr, place: tirx.Expr, length: tirx.Expr, ratio: tirx.Expr, attrs: Mapping[str, Any]) -> tirx.Expr:
    """The weight that a linear or cubic filter at a position gives a place, before all are normalised.

    With `antialias` a filter is as much wider as the result is smaller.
    """
    shrink = tirx.min(ratio, _f(1.0)) if attrs.get("antialias", 0) else _f(1.0)
    distance = tirx.abs(x - place.astype("float32")) * shrink
    linear = attrs.get("mode") == "linear"
    found = tirx.max(_f(0.0), _f(1.0) - distance) if linear else _cubic(distance, attrs)
    if attrs.get("exclude_outside", 0):
        inside = tirx.all(place >= tirx.const(0, "int64"), place < length)
        found = tirx.Select(inside, found, _f(0.0))
    return found


def _f(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")
