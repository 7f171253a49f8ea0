"""Positions and weights of Resize: of numpy's arrays if sizes are known, else as expressions of them.

They are in float32 and in ONNX Runtime's order of operations: rounding decides which pixel is nearest if a quotient is
close to a whole number, as 17 / 1.7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx


@dataclass(frozen=True, slots=True)
class Numbers:
    """Functions of numbers, which are expressions or arrays."""

    number: Callable[[float], Any]
    select: Callable[[Any, Any, Any], Any]
    max: Callable[[Any, Any], Any]
    min: Callable[[Any, Any], Any]
    abs: Callable[[Any], Any]
    floor: Callable[[Any], Any]
    ceil: Callable[[Any], Any]
    part: Callable[[Any], Any]
    both: Callable[[Any, Any], Any]


def _f(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")


def share(x: tirx.Expr) -> tirx.Expr:
    """The part of a position behind its floor, of its bits: TVM's simplifier takes quotients of floats for integers."""
    plain = tirx.reinterpret("float32", tirx.reinterpret("int32", x))
    return plain - tirx.floor(plain)


EXPRESSIONS = Numbers(_f, tirx.Select, tirx.max, tirx.min, tirx.abs, tirx.floor, tirx.ceil, share, tirx.all)
ARRAYS = Numbers(
    float, np.where, np.maximum, np.minimum, np.abs, np.floor, np.ceil, lambda x: x - np.floor(x), np.logical_and
)
"""A number has the precision of the array that it meets."""

HALFWAY = 1e-6
"""Positions this close to halfway between two pixels count as halfway, as observed of ONNX Runtime 1.31."""

Region = tuple[tirx.Expr, tirx.Expr]
"""The start and the end of what tf_crop_and_resize reads, as parts of the last place."""

CROP = "tf_crop_and_resize"

BY_RATIO = "by ratio"
"""The only `nearest_mode` before operator set 11: `ceil` along axes that become shorter, `floor` along others."""


def _up_if(condition: Any, x: Any, m: Numbers) -> Any:
    return m.floor(x) + m.select(condition, m.number(1.0), m.number(0.0))


NEAREST: Mapping[str, Callable[[Any, Numbers], Any]] = {
    "floor": lambda x, m: m.floor(x),
    "ceil": lambda x, m: m.ceil(x),
    "round_prefer_floor": lambda x, m: _up_if(m.part(x) > m.number(0.5 + HALFWAY), x, m),
    "round_prefer_ceil": lambda x, m: _up_if(m.part(x) >= m.number(0.5 - HALFWAY), x, m),
}
"""Rounding to a place, by `nearest_mode`."""


def rounding(mode: str, ratio: float) -> str:
    """The `nearest_mode` for an axis of this ratio of output to input. Raises NotImplementedError for unknown ones."""
    found = ("ceil" if ratio < 1 else "floor") if mode == BY_RATIO else mode
    if found not in NEAREST:
        raise NotImplementedError(f"nearest_mode {mode}")
    return found


def nearest(x: Any, mode: str, ratio: Any, m: Numbers = EXPRESSIONS) -> Any:
    """The place nearest to a position, for an axis whose ratio may be known only at run time."""
    if mode == BY_RATIO:
        return m.select(ratio < m.number(1.0), m.ceil(x), m.floor(x))
    return NEAREST[mode](x, m)


def source(
    y: Any,
    length: Any,
    out: Any,
    ratio: Any,
    region: Region | None,
    attrs: Mapping[str, Any],
    m: Numbers = EXPRESSIONS,
) -> Any:
    """The position in the input of output `y`."""
    mode = attrs.get("coordinate_transformation_mode", "half_pixel")
    # The larger of a place and 0 is the place, and hides from TVM's simplifier that a quotient is of integers.
    place, half = m.max(y.astype("float32"), m.number(0.0)), m.number(0.5)
    last = (length - 1).astype("float32")
    if mode == CROP:
        if region is None:
            raise NotImplementedError(f"{CROP} needs a region")
        start, end = region
        step = place * (end - start) * last / m.max((out - 1).astype("float32"), m.number(1.0))
        return m.select(out > 1, start * last + step, half * (start + end) * last)
    if mode == "asymmetric":
        return place / ratio
    centred = (place + half) / ratio
    if mode == "half_pixel":
        return centred - half
    if mode == "tf_half_pixel_for_nn":
        return centred
    if mode == "pytorch_half_pixel":
        return m.select(out > 1, centred - half, m.number(0.0))
    whole = length.astype("float32")
    if mode == "half_pixel_symmetric":
        offset = whole / m.number(2.0) * (m.number(1.0) - out.astype("float32") / (ratio * whole))
        exact = (place.astype("float64") + 0.5) / ratio.astype("float64")
        return (offset.astype("float64") + exact - 0.5).astype("float32")
    if mode == "align_corners":
        return m.select(out > 1, place * last / m.max((out - 1).astype("float32"), m.number(1.0)), m.number(0.0))
    raise NotImplementedError(f"coordinate_transformation_mode {mode}")


def is_outside(x: tirx.Expr, length: tirx.Expr) -> tirx.Expr:
    """Whether a position is outside the data."""
    last = (length - tirx.const(1, "int64")).astype("float32")
    return tirx.any(x < _f(0.0), x > last)


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


def _cubic(distance: Any, attrs: Mapping[str, Any], m: Numbers = EXPRESSIONS) -> Any:
    """Keys' cubic convolution kernel with the free parameter `cubic_coeff_a`."""
    a = float(attrs.get("cubic_coeff_a", -0.75))
    d = distance
    near = ((m.number(a + 2) * d - m.number(a + 3)) * d) * d + m.number(1.0)
    far = ((d - m.number(5.0)) * d + m.number(8.0)) * d * m.number(a) - m.number(4.0 * a)
    return m.select(d <= m.number(1.0), near, m.select(d < m.number(2.0), far, m.number(0.0)))


def weight(x: Any, place: Any, length: Any, ratio: Any, attrs: Mapping[str, Any], m: Numbers = EXPRESSIONS) -> Any:
    """The weight that a linear or cubic filter at a position gives a place, before all are normalised.

    With `antialias` a filter is as much wider as the result is smaller.
    """
    shrink = m.min(ratio, m.number(1.0)) if attrs.get("antialias", 0) else m.number(1.0)
    distance = m.abs(x - place.astype("float32")) * shrink
    linear = attrs.get("mode") == "linear"
    found = m.max(m.number(0.0), m.number(1.0) - distance) if linear else _cubic(distance, attrs, m)
    if attrs.get("exclude_outside", 0):
        inside = m.both(place >= 0, place < length)
        found = m.select(inside, found, m.number(0.0))
    return found
