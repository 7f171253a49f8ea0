"""Values of dtypes that numpy lacks: bfloat16, the 8-bit floating-point numbers, and 4-bit integers.

Compiled code stores the bits of floating-point numbers as unsigned integers, and 4-bit integers as 8-bit ones.
Operators that only move elements work on these. Others compute in float32, or in 8-bit integers, of the converted
operands; their results are rounded once, to nearest even. Source: the tables of Cast in ONNX's
operator specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from heterocc.artifacts.dtypes import CARRIED
from heterocc.compiler.lower.converters.quantised.quantised_operators import levels, steps
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import as_dtype
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.written import WIDENS
from heterocc.compiler.operators.table import named

op = relax.op

Run = Callable[[Context, list[relax.Expr | None]], list[relax.Expr]]
"""The conversion of a node with other inputs or attributes."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of 8 bits: the bits of the fraction, the bias, and the codes of the largest number and of NaN.

    `beyond` is the code for numbers that are too large if they are not saturated. `signs_zero` is whether it has a
    negative zero, and NaN and infinities with a sign.
    """

    fraction: int
    bias: int
    largest: int
    nan: int
    beyond: int
    signs_zero: bool


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7F, 0x7F, signs_zero=True),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7F, 0x7C, signs_zero=True),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80, 0x80, signs_zero=False),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80, 0x80, signs_zero=False),
}


def carried_name(dtype: str) -> str:
    """The dtype that compiled code has for a dtype of a value."""
    return CARRIED[dtype].name if dtype in CARRIED else dtype


def is_touched(ctx: Context) -> bool:
    """Return whether the node reads or writes a value of such a dtype."""
    return any(_dtype(ctx, name) in CARRIED for name in (*ctx.node.input, *ctx.node.output))


def convert(ctx: Context, given: list[relax.Expr | None], run: Run) -> list[relax.Expr]:
    """The outputs of a node that touches such values, in the form in which code has them."""
    kind = ctx.node.op_type
    if named(kind).moves:
        return run(ctx, given)
    if kind == "BitCast":
        code = np.dtype(carried_name(_dtype(ctx, ctx.node.output[0])))
        return run(ctx.changed({"to": int(helper.np_dtype_to_tensor_dtype(code))}), given)
    wide = [v if v is None else decode(ctx, v, _dtype(ctx, n)) for v, n in zip(given, ctx.node.input, strict=True)]
    target = _dtype(ctx, ctx.node.output[0])
    saturates = bool(ctx.attrs.get("saturate", 1))
    if kind in ("Cast", "CastLike"):
        value = wide[0]
        if target not in CARRIED:
            to = int(helper.np_dtype_to_tensor_dtype(np.dtype(target)))
            return run(ctx.changed({"to": to}), [value])
        return [encode(ctx, value, target, saturates=saturates)]
    if kind == "QuantizeLinear" and target in CARRIED:
        return [_quantised(ctx, wide, target, saturates=saturates)]
    results = run(ctx, wide)
    names = zip(results, ctx.node.output, strict=False)
    return [encode(ctx, ctx.bb.normalize(v), _dtype(ctx, name)) if name else v for v, name in names]


def decode(ctx: Context, value: relax.Expr, dtype: str) -> relax.Expr:
    """A value in the form for computations: float32, or the 8-bit integers that it is stored as."""
    if dtype == "bfloat16":
        return from_bfloat16(ctx.bb, value)
    if dtype not in FORMATS:
        return value
    numbers = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32)

    def look_up(x: te.Tensor, table: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: table(x(*i).astype("int32")), name="look_up")

    return ctx.bb.emit_te(look_up, value, constant(numbers), primfunc_name_hint=f"from_{dtype}")


def encode(ctx: Context, value: relax.Expr, dtype: str, *, saturates: bool = True) -> relax.Expr:
    """A computed value in the form of a dtype; a value of another dtype as it is."""
    if dtype not in CARRIED:
        return value
    if dtype in ("int4", "uint4"):
        return _four_bits(ctx, value, dtype)
    number = ctx.bb.emit(as_dtype(value, "float32"))
    if dtype == "bfloat16":
        return to_bfloat16(ctx.bb, number)
    rule = _rule(FORMATS[dtype], saturates=saturates)

    def narrow(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: rule(x(*i)), name="narrow")

    return ctx.bb.emit_te(narrow, number, primfunc_name_hint=f"to_{dtype}")


def from_bfloat16(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """The float32 numbers of a tensor of bits of bfloat16."""

    def widen(x: te.Tensor) -> te.Tensor:
        shift = tirx.const(16, "uint32")
        return te.compute(
            x.shape, lambda *i: tirx.reinterpret("float32", x(*i).astype("uint32") << shift), name="widen"
        )

    return bb.emit_te(widen, value, primfunc_name_hint="from_bfloat16", primfunc_attrs={WIDENS: True})


def to_bfloat16(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """The bits of bfloat16 of a tensor of float32, rounded to the nearest, ties to even."""

    def narrow(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: bits_of_bfloat16(x(*i)), name="narrow")

    return bb.emit_te(narrow, value, primfunc_name_hint="to_bfloat16", primfunc_attrs={WIDENS: False})


def _four_bits(ctx: Context, value: relax.Expr, dtype: str) -> relax.Expr:
    """The low four bits of an integer, or of a number without its fraction."""
    whole = ctx.bb.emit(as_dtype(value, "int32"))

    def low_bits(x: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            bits = x(*i) & tirx.const(15, "int32")
            if dtype == "int4":
                eight = tirx.const(8, "int32")
                bits = (bits ^ eight) - eight
            return bits.astype(CARRIED[dtype].name)

        return te.compute(x.shape, at, name="low_bits")

    return ctx.bb.emit_te(low_bits, whole, primfunc_name_hint=f"to_{dtype}")


def _quantised(ctx: Context, given: Sequence[relax.Expr | None], dtype: str, *, saturates: bool) -> relax.Expr:
    """QuantizeLinear to one of these dtypes."""
    data, scale = given[0], given[1]
    zero = given[2] if len(given) > 2 else None
    assert data is not None and scale is not None
    if dtype in ("int4", "uint4"):
        low, high = (-8, 7) if dtype == "int4" else (0, 15)
        return op.astype(levels(ctx, data, scale, zero, low, high), CARRIED[dtype].name)
    # The zero point of a floating-point format is 0.
    return encode(ctx, steps(ctx, data, scale), dtype, saturates=saturates)


def bits_of_bfloat16(x: tirx.Expr) -> tirx.Expr:
    """The bits of bfloat16 of a number of float32, rounded to the nearest, ties to even."""
    bits = tirx.reinterpret("uint32", x)
    one = tirx.const(1, "uint32")
    half = tirx.const(0x7FFF, "uint32") + ((bits >> tirx.const(16, "uint32")) & one)
    rounded = (bits + half) >> tirx.const(16, "uint32")
    return tirx.Select(tirx.isnan(x), tirx.const(0x7FC0, "uint32"), rounded).astype("uint16")


def _rule(form: Format, *, saturates: bool) -> Callable[[tirx.Expr], tirx.Expr]:
    """The code of a number in a format of 8 bits."""

    def bits(value: int) -> tirx.Expr:
        return tirx.const(value, "uint32")

    def number(value: float) -> tirx.Expr:
        return tirx.const(value, "float32")

    step = 2.0 ** (1 - form.bias - form.fraction)
    # Added to a number below the least normal one, it leaves the number of steps in the low bits, rounded.
    magic = np.float32(step * 2**23)
    shift = 23 - form.fraction
    beyond = form.largest if saturates else form.beyond

    def rule(x: tirx.Expr) -> tirx.Expr:
        # Unsigned, because code generation widens signed arithmetic. Compared as floating-point numbers, because TVM's
        # simplifier fails on comparisons of unsigned numbers with constants.
        whole = tirx.reinterpret("uint32", x)
        sign = (whole >> bits(24)) & bits(0x80)
        size = whole & bits(0x7FFFFFFF)
        amount = tirx.reinterpret("float32", size)
        rounded = (size + bits((1 << (shift - 1)) - 1) + ((size >> bits(shift)) & bits(1))) >> bits(shift)
        normal = rounded - bits((127 - form.bias) << form.fraction)
        small = tirx.reinterpret("uint32", amount + number(float(magic))) - bits(int(magic.view(np.uint32)))
        code = tirx.Select(amount < number(2.0 ** (1 - form.bias)), small, normal)
        code = tirx.Select(amount >= number(_overflow(form)), bits(beyond), code)
        code = code | sign if form.signs_zero else tirx.Select(amount > number(step / 2), code | sign, bits(0))
        return tirx.Select(tirx.isnan(x), bits(form.nan), code).astype("uint8")

    return rule


def _overflow(form: Format) -> float:
    """The least float32 that rounds to more than the largest number of a format."""

    def of_code(code: int) -> float:
        exponent, fraction = code >> form.fraction, code & ((1 << form.fraction) - 1)
        return float(2.0 ** (exponent - form.bias) * (1 + fraction / (1 << form.fraction)))

    middle = np.float32((of_code(form.largest) + of_code(form.largest + 1)) / 2)
    # A tie goes to the even code.
    return float(middle if form.largest % 2 else np.nextafter(middle, np.float32(np.inf)))


def _dtype(ctx: Context, name: str) -> str:
    value = ctx.values.get(name) if name else None
    return "" if value is None else value.dtype
