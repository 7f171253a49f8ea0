"""Resize of dimensions without a fixed size: source positions are computed with each output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of
from heterocc.compiler.lower.sized import emit_sized

HALFWAY = 1e-6
"""Positions this close to halfway between two pixels count as halfway, as observed of ONNX Runtime 1.31."""

_ROUNDING: Mapping[str, Callable[[tirx.Expr], tirx.Expr]] = {
    "floor": tirx.floor,
    "ceil": tirx.ceil,
    "round_prefer_floor": lambda x: tirx.ceil(x - _f(0.5 + HALFWAY)),
    "round_prefer_ceil": lambda x: tirx.floor(x + _f(0.5 + HALFWAY)),
}


def resize_sized(
    ctx: Context, data: relax.Expr, scales: list[float] | None, attrs: Mapping[str, Any], rounding: str | None = None
) -> relax.Expr:
    """Resize all axes whose size changes, one after the other, to the shape of the node's output.

    `scales` are the ratios of output to input, None for those of the sizes. `rounding` replaces `nearest_mode`.
    Raises NotImplementedError for modes other than nearest and linear.
    """
    mode = attrs.get("mode", "nearest")
    if mode not in ("nearest", "linear") or attrs.get("antialias", 0) or attrs.get("exclude_outside", 0):
        raise NotImplementedError("only nearest and linear resizing of dimensions without a fixed size is supported")
    if mode == "linear" and not dtype_of(data).startswith("float"):
        raise NotImplementedError("linear resizing of integers needs dimensions of a fixed size")
    nearest = _ROUNDING[rounding or attrs.get("nearest_mode", "round_prefer_floor")] if mode == "nearest" else None
    if scales is not None and min(scales) < 1 and attrs.get("coordinate_transformation_mode") == "align_corners":
        raise NotImplementedError("aligned corners of a dimension without a fixed size need its output's size")
    wanted = ctx.result()
    value = data
    for axis, size in enumerate(wanted):
        scale = None if scales is None else scales[axis]
        given = dims_of(value)[axis]
        if scale == 1 or (scale is None and (given is size or str(given) == str(size))):
            continue
        value = _along(ctx, value, axis, size, scale, attrs, nearest)
    return value


def _along(
    ctx: Context,
    data: relax.Expr,
    axis: int,
    size: Any,
    scale: float | None,
    attrs: Mapping[str, Any],
    nearest: Callable[[tirx.Expr], tirx.Expr] | None,
) -> relax.Expr:
    shape = [size if d == axis else n for d, n in enumerate(dims_of(data))]
    if scale is not None and scale > 1 and _repeats(attrs, nearest):
        times = tirx.const(int(scale), "int64")

        def repeat(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
            return te.compute(
                wanted,
                lambda *i: tensors[0](*(tirx.floordiv(v, times) if d == axis else v for d, v in enumerate(i))),
                name="resize",
            )

        return emit_sized(ctx.bb, repeat, [data], [], shape, dtype_of(data), "resize")

    def table(rule: Callable[[tirx.Expr], tirx.Expr], dtype: str) -> relax.Expr:
        """A number for each place along the axis, by a rule for its position in the input."""

        def compute(_: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
            return te.compute(wanted, lambda y: rule(_source(y, sizes[0], wanted[0], scale, attrs)).astype(dtype))

        return emit_sized(ctx.bb, compute, [], [dims_of(data)[axis]], [size], dtype, "resize_places")

    def read(x: te.Tensor, i: tuple[tirx.Var, ...], place: tirx.Expr) -> tirx.Expr:
        last = x.shape[axis] - tirx.const(1, "int64")
        inside = tirx.max(tirx.min(place, last), tirx.const(0, "int64"))
        return x(*(inside if d == axis else v for d, v in enumerate(i)))

    if nearest is not None:

        def pick(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
            x, places = tensors
            return te.compute(wanted, lambda *i: read(x, i, places(i[axis])), name="resize")

        return emit_sized(ctx.bb, pick, [data, table(nearest, "int64")], [], shape, dtype_of(data), "resize")

    def mix(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        x, places, shares = tensors

        def at(*i: tirx.Var) -> tirx.Expr:
            place, share = places(i[axis]), shares(i[axis]).astype(x.dtype)
            low, high = read(x, i, place), read(x, i, place + tirx.const(1, "int64"))
            return low * (tirx.const(1, x.dtype) - share) + high * share

        return te.compute(wanted, at, name="resize")

    tables = [table(tirx.floor, "int64"), table(_share, "float32")]
    return emit_sized(ctx.bb, mix, [data, *tables], [], shape, dtype_of(data), "resize")


def _repeats(attrs: Mapping[str, Any], nearest: Callable[[tirx.Expr], tirx.Expr] | None) -> bool:
    """Whether a whole scale repeats each element: `y // scale` then is the nearest element, without rounding."""
    coordinates = attrs.get("coordinate_transformation_mode", "half_pixel")
    if coordinates == "asymmetric":
        return nearest is _ROUNDING["floor"]
    rounds = (_ROUNDING["round_prefer_floor"], _ROUNDING["round_prefer_ceil"])
    return coordinates in ("half_pixel", "half_pixel_symmetric") and nearest in rounds


def _source(
    y: tirx.Expr, length: tirx.Expr, out: tirx.Expr, scale: float | None, attrs: Mapping[str, Any]
) -> tirx.Expr:
    """The position in the input, in float32 and in ONNX Runtime's order of operations."""
    mode = attrs.get("coordinate_transformation_mode", "half_pixel")
    # The larger of a place and 0 is the place, and hides from TVM's simplifier that a quotient is of integers.
    place, half = tirx.max(y.astype("float32"), _f(0.0)), _f(0.5)
    factor = _f(scale) if scale is not None else out.astype("float32") / length.astype("float32")
    if mode == "asymmetric":
        return place / factor
    centred = (place + half) / factor - half
    if mode == "half_pixel":
        return centred
    one = tirx.const(1, "int64")
    if mode == "pytorch_half_pixel":
        return tirx.Select(out > one, centred, _f(0.0))
    if mode == "align_corners":
        last = (out - one).astype("float32") if scale is None else length.astype("float32") * factor - _f(1.0)
        return tirx.Select(last > _f(0.0), place * (length - one).astype("float32") / last, _f(0.0))
    raise NotImplementedError(f"coordinate_transformation_mode {mode} needs dimensions of a fixed size")


def _share(x: tirx.Expr) -> tirx.Expr:
    """The part of a position behind its floor, of its bits: TVM's simplifier takes quotients of floats for integers."""
    plain = tirx.reinterpret("float32", tirx.reinterpret("int32", x))
    return plain - tirx.floor(plain)


def _f(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")
