"""Converter of GridSample."""

from __future__ import annotations

from tvm import relax

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.requested import has_fixed_sizes, requested
from heterocc.compiler.lower.converters.values import dims_of, dtype_of

_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest"}


@converter("GridSample")
def grid_sample(ctx: Context, data: relax.Expr, grid: relax.Expr) -> relax.Expr:
    """GridSample: by a kernel of the CPU back end for images of fixed sizes, else by TVM's operator."""
    mode = _MODES.get(ctx.text("mode", "linear"))
    images = dims_of(data)
    fits = has_fixed_sizes(data) and has_fixed_sizes(grid) and len(images) == 4 and images[2] * images[3] < 1 << 31
    if ctx.backend != "cpu" or mode is None or not fits or {dtype_of(data), dtype_of(grid)} != {"float32"}:
        return ctx.original(data, grid)
    shape = [*images[:2], *dims_of(grid)[1:3]]
    options: dict[str, int | str] = {
        "mode": mode,
        "padding": ctx.text("padding_mode", "zeros"),
        "aligned": int(ctx.attrs.get("align_corners", 0)),
    }
    return requested(ctx, "grid_sample", [data, grid], [(shape, "float32")], **options)
