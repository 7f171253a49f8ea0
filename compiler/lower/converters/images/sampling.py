"""Converter of GridSample."""

from __future__ import annotations

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.requested import has_fixed_sizes, requested
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, padded_place
from heterocc.compiler.lower.variables import as_int64

_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest"}


@converter("GridSample")
def grid_sample(ctx: Context, data: relax.Expr, grid: relax.Expr) -> relax.Expr:
    """GridSample: by a kernel of the CPU back end for images of fixed sizes, else by TVM's operator."""
    mode = _MODES.get(ctx.text("mode", "linear"))
    images = dims_of(data)
    fits = has_fixed_sizes(data) and has_fixed_sizes(grid) and len(images) == 4 and images[2] * images[3] < 1 << 31
    if ctx.backend != "cpu" or mode is None or not fits or {dtype_of(data), dtype_of(grid)} != {"float32"}:
        mirrored = ctx.text("padding_mode", "zeros") == "reflection" and ctx.attrs.get("align_corners", 0)
        if mirrored and mode is None and len(images) == 4 and dtype_of(data) == dtype_of(grid):
            return ctx.bb.emit_te(_mirrored_cubic, data, grid, primfunc_name_hint="grid_sample")
        return ctx.original(_at_least_two(ctx, data) if mirrored else data, grid)
    shape = [*images[:2], *dims_of(grid)[1:3]]
    options: dict[str, int | str] = {
        "mode": mode,
        "padding": ctx.text("padding_mode", "zeros"),
        "aligned": int(ctx.attrs.get("align_corners", 0)),
    }
    return requested(ctx, "grid_sample", [data, grid], [(shape, "float32")], **options)


def _mirrored_cubic(images: te.Tensor, grid: te.Tensor) -> te.Tensor:
    """Cubic samples of images that are mirrored at the centres of their outer pixels."""
    kind = images.dtype

    def number(value: float) -> tirx.Expr:
        return tirx.const(value, kind)

    def along(size: tirx.Expr, coordinate: tirx.Expr) -> list[tuple[tirx.Expr, tirx.Expr]]:
        """The four nearest pixels of a row, and their weights."""
        exact = (coordinate + number(1)) * (size - as_int64(1)).astype(kind) * number(0.5)
        low = tirx.floor(exact)
        part = exact - low
        found = []
        for place, distance in enumerate((part + number(1), part, number(1) - part, number(2) - part)):
            at = padded_place(low.astype("int64") + as_int64(place - 1), size, "reflect")
            if place in (1, 2):
                weight = (number(1.25) * distance - number(2.25)) * distance * distance + number(1)
            else:
                weight = ((number(3.75) - number(0.75) * distance) * distance - number(6)) * distance + number(3)
            found.append((at, weight))
        return found

    height, width = (as_int64(n) for n in images.shape[2:])

    def at(n: tirx.Var, c: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        columns = along(width, grid(n, i, j, 0))
        total = number(0)
        for y, weight in along(height, grid(n, i, j, 1)):
            row = number(0)
            for x, share in columns:
                row = row + share * images(n, c, y, x)
            total = total + weight * row
        return total

    return te.compute([*images.shape[:2], *grid.shape[1:3]], at, name="grid_sample")


def _at_least_two(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Images whose spatial axes of one element have it twice: every coordinate is then between equal elements.

    TVM divides by the size less one to mirror a coordinate that is not in the image, or NaN: this ends the process if
    the size is 1.
    """
    shape = dims_of(data)
    if all(isinstance(size, int) and size > 1 for size in shape[2:]):
        return data
    two = as_int64(2)
    larger = [tirx.min(two * as_int64(n), tirx.max(as_int64(n), two)) for n in shape[2:]]  # one that is empty stays so

    def compute(x: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            last = [as_int64(n) - as_int64(1) for n in x.shape[2:]]
            return x(*i[:2], *(tirx.min(v.astype("int64"), n) for v, n in zip(i[2:], last, strict=True)))

        return te.compute([*shape[:2], *larger], at, name="at_least_two")

    return ctx.bb.emit_te(compute, data, primfunc_name_hint="at_least_two")
