"""Casts of floats to integers on CPUs."""

from __future__ import annotations

from onnx import helper
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dtype_of

_THROUGH = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "int32": "int32", "int64": "int64"}
"""The integers that a CPU converts floats to, by the wanted dtype; narrower ones keep the lowest bits."""


@converter("Cast")
def cast(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Cast, from floats to integers in vectors. ONNX leaves numbers out of range open: x86's least integer."""
    wanted = helper.tensor_dtype_to_np_dtype(ctx.attrs["to"]).name
    if ctx.backend != "cpu" or wanted not in _THROUGH or not isinstance(data, relax.Var | relax.Call):
        return ctx.original(data)
    data = ctx.bb.normalize(data)
    source = dtype_of(data) if isinstance(data.ty, relax.TensorType) else ""
    if source not in ("float32", "float64"):
        return ctx.original(data)
    wide = _THROUGH[wanted]
    limit = tirx.const(2.0 ** (31 if wide == "int32" else 63), source)

    def converted(x: te.Tensor) -> te.Tensor:
        def number(*place: tirx.Var) -> tirx.Expr:
            value = x(*place)
            # LLVM's conversion is undefined outside the range, and the comparisons are false for NaN.
            inside = tirx.all(value >= -limit, value < limit)
            whole = tirx.Select(inside, value, tirx.const(0, source)).astype(wide)
            return tirx.Select(inside, whole, tirx.min_value(wide))

        return te.compute(x.shape, number, name="cast")

    return as_dtype(ctx.bb.emit_te(converted, data, primfunc_name_hint="cast"), wanted)
