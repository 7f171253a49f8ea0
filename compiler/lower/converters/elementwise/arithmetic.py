"""Converters of elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tvm
import tvm_ffi
from onnx import helper
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.divisors import checked_divisors, is_minus_one, may_overflow, without_minus_one
from heterocc.compiler.lower.converters.randoms import dropped_out
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import (
    as_dtype,
    combined,
    dims_of,
    dtype_of,
    fixed,
    is_float,
    rank_of,
    scalar,
)
from heterocc.compiler.lower.straight import constant

op = relax.op

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""The defaults of Selu's attributes."""


@converter("IsInf")
def _is_inf(ctx: Context, data: relax.Expr) -> relax.Expr:
    """IsInf with the attributes `detect_positive` and `detect_negative`."""
    infinity = scalar(math.inf, dtype_of(data))
    parts = []
    if ctx.attrs.get("detect_positive", 1):
        parts.append(op.equal(data, infinity))
    if ctx.attrs.get("detect_negative", 1):
        parts.append(op.equal(data, op.negative(infinity)))
    if not parts:
        return op.zeros(dims_of(data), "bool")
    return op.logical_or(*parts) if len(parts) == 2 else parts[0]


@converter("Dropout")
def _dropout(
    ctx: Context, data: relax.Expr, ratio: relax.Expr | None = None, training: relax.Expr | None = None
) -> list[relax.Expr]:
    """Dropout: in inference mode, or of a ratio of 0, the data and a mask of true; before version 12 of false."""
    if training is not None:
        known = [fixed(v) for v in (ratio, training) if v is not None]
        if not any(value is not None and not value.any() for value in known):
            return list(dropped_out(ctx, data, ratio, training))[: ctx.outputs]
    if ctx.outputs < 2:
        return [data]
    mask = op.ones if ctx.opset >= 12 else op.zeros
    return [data, mask(dims_of(data), "float32" if ctx.opset < 10 else "bool")]


@converter("Elu")
def elu(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Elu, computed in the dtype of the input."""
    dtype = dtype_of(data)
    zero, one, alpha = scalar(0, dtype), scalar(1, dtype), scalar(ctx.attrs.get("alpha", 1.0), dtype)
    below = op.multiply(alpha, op.subtract(op.exp(op.minimum(data, zero)), one))
    return op.where(op.greater(data, zero), data, below)


@converter("Selu")
def _selu(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Selu, computed in the dtype of the input."""
    alpha, gamma = (ctx.attrs.get(name, default) for name, default in (("alpha", SELU_ALPHA), ("gamma", SELU_GAMMA)))
    dtype = dtype_of(data)
    zero = scalar(0, dtype)
    below = op.multiply(scalar(gamma * alpha, dtype), op.subtract(op.exp(op.minimum(data, zero)), scalar(1, dtype)))
    return op.where(op.greater(data, zero), op.multiply(scalar(gamma, dtype), data), below)


@converter("ThresholdedRelu")
def _thresholded_relu(ctx: Context, data: relax.Expr) -> relax.Expr:
    """ThresholdedRelu, computed in the dtype of the input."""
    dtype = dtype_of(data)
    return op.where(op.greater(data, scalar(ctx.attrs.get("alpha", 1.0), dtype)), data, scalar(0, dtype))


@converter("PRelu")
def _prelu(ctx: Context, data: relax.Expr, slope: relax.Expr) -> relax.Expr:
    """PRelu, also with a slope of sizes that are known only at run time, which TVM's converter does not take."""
    if all(isinstance(size, int) for size in dims_of(slope)):
        return ctx.original(data, slope)
    return op.where(op.less(data, scalar(0, dtype_of(data))), op.multiply(data, slope), data)


@converter("Equal")
def equal(_ctx: Context, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """Equal for all dtypes. Booleans are compared as integers: LLVM code generation cannot compare booleans."""
    if dtype_of(left) == "bool":
        left, right = as_dtype(left, "uint8"), as_dtype(right, "uint8")
    return op.equal(left, right)


@converter("Sum")
def _sum(_ctx: Context, *inputs: relax.Expr) -> relax.Expr:
    """Sum as a chain of additions, which can be fused. TVM's converter broadcasts every input first."""
    return combined(op.add, inputs)


@converter("Mean")
def _mean(_ctx: Context, *inputs: relax.Expr) -> relax.Expr:
    return op.divide(combined(op.add, inputs), scalar(len(inputs), dtype_of(inputs[0])))


@converter("Pow")
def _pow(ctx: Context, base: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    """Pow with operands of different dtypes; the exponents 1, 2 and 3 become products."""
    result = dtype_of(base)
    fixed = exponent.value.numpy() if isinstance(exponent, tvm.ir.GenericConst) else None
    if fixed is not None and fixed.size == 1 and fixed.ndim <= rank_of(base) and float(fixed.flat[0]) in (1, 2, 3):
        return combined(op.multiply, (base,) * int(fixed.flat[0])) if float(fixed.flat[0]) > 1 else base
    work = result if is_float(base) else "float64"
    if fixed is not None and fixed.size == 1:
        # The exponent is an operand because TVM warns about a literal one.
        power = ctx.bb.emit_te(
            _elementwise(tirx.power),
            ctx.bb.emit(as_dtype(base, work)),
            constant(fixed.astype(work)),
            primfunc_name_hint="power",
        )
    else:
        power = op.power(as_dtype(base, work), as_dtype(exponent, work))
    return power if work == result else op.astype(power, result)


_QUOTIENTS = {"int32": "float64", "int16": "float32", "uint16": "float32", "int8": "float32", "uint8": "float32"}
"""The floating-point type whose rounded quotients of such integers have the right integral part."""


@converter("Div")
def _div(ctx: Context, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """Div. Integers are not divided by 0, and the least one by -1 is itself, as in two's complement."""
    if is_float(left):
        return ctx.original(left, right)
    right = checked_divisors(ctx, right)
    if not may_overflow(ctx, right):
        return _quotient(ctx, left, right)
    quotient = _quotient(ctx, left, without_minus_one(ctx, right))
    return op.where(is_minus_one(right), op.negative(left), ctx.bb.normalize(quotient))


def _quotient(ctx: Context, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """The quotient of integers, rounded towards 0.

    CPUs have no vectors of integer quotients, so those of short integers are computed in floating point: a quotient
    that is not an integer is at least 1 / |right| away from one, and its rounding error is smaller.
    """
    dtype = dtype_of(left)
    known = fixed(right)
    if ctx.backend != "cpu" or dtype not in _QUOTIENTS or (known is not None and known.size == 1):
        return ctx.original(left, right)
    wide = [ctx.bb.emit(as_dtype(v, _QUOTIENTS[dtype])) for v in (left, right)]
    return as_dtype(ctx.bb.emit(op.divide(*wide)), dtype)


@converter("Mod")
def _mod(ctx: Context, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """Mod. The result has the sign of the divisor, or that of the dividend if `fmod` is set, as it is for floats."""
    if is_float(left):
        return _float_mod(ctx, left, right)
    right = without_minus_one(ctx, checked_divisors(ctx, right))
    # TVM compiles it to `select`, which is ambiguous for short integers in OpenCL C.
    result = dtype_of(left)
    work = "int32" if result in ("int8", "int16", "uint8", "uint16") else result
    left, right = (ctx.bb.emit(as_dtype(v, work)) for v in (left, right))
    fmod = bool(ctx.attrs.get("fmod", 0))
    value = ctx.bb.emit_te(
        _elementwise(tirx.truncmod if fmod else tirx.floormod),
        left,
        right,
        primfunc_name_hint="fmod" if fmod else "mod",
    )
    return as_dtype(value, result)


def _float_mod(ctx: Context, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """The exact remainder of floating-point numbers, as C's `fmod`; with the divisor's sign if `fmod` is 0."""
    if ctx.backend != "cpu":
        raise NotImplementedError("the remainder of floating-point numbers is not supported on GPUs")
    dtype = dtype_of(left)
    work = "float32" if dtype == "float16" else dtype
    left, right = (ctx.bb.emit(as_dtype(v, work)) for v in (left, right))
    zero, of_dividend = tirx.const(0, work), bool(ctx.attrs.get("fmod", 0))

    def remainder(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        # There is vector code of float32 alone; LLVM has no function for others.
        rest = tirx.fmod(a, b) if work == "float32" else tirx.call_pure_extern(work, "fmod", a, b)
        if of_dividend:
            return rest
        differs = tirx.any(tirx.all(rest < zero, b > zero), tirx.all(rest > zero, b < zero))
        signed = tirx.Select(differs, rest + b, rest)
        return tirx.Select(rest == zero, tirx.Select(b < zero, tirx.const(-0.0, work), zero), signed)

    return as_dtype(ctx.bb.emit_te(_elementwise(remainder), left, right, primfunc_name_hint="fmod"), dtype)


@converter("BitCast")
def bit_cast(ctx: Context, data: relax.Expr) -> relax.Expr:
    """The same bits as another dtype of the same width."""
    old, new = dtype_of(data), helper.tensor_dtype_to_np_dtype(ctx.attrs["to"]).name
    if old == new:
        return data
    if "bool" in (old, new) and np.dtype(old).itemsize == np.dtype(new).itemsize:
        return op.astype(data, new)  # a byte of 0 or 1
    if np.dtype(old).itemsize != np.dtype(new).itemsize:
        raise NotImplementedError(f"the bits of {old} cannot be those of {new}")

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tirx.reinterpret(new, x(*i)), name="bit_cast")

    return ctx.bb.emit_te(compute, data, primfunc_name_hint="bit_cast")


@converter("BitShift")
def _bit_shift(ctx: Context, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """BitShift. A count that is negative or at least the width shifts all bits out; right shifts are arithmetic."""
    dtype = dtype_of(left)
    bits = np.dtype(dtype).itemsize * 8
    to_left = ctx.text("direction", "LEFT") == "LEFT"

    def shift(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        # Compare as signed numbers: TVM's simplifier fails on comparisons of unsigned numbers with constants. A count
        # of 2**63 or more becomes negative, which is out of range too.
        signed = tirx.Cast("int64", b)
        inside = tirx.all(signed >= tirx.const(0, "int64"), signed < tirx.const(bits, "int64"))
        count = tirx.Select(inside, b, tirx.const(0, dtype))
        shifted = tirx.shift_left(a, count) if to_left else tirx.shift_right(a, count)
        zero = tirx.const(0, dtype)
        if to_left or dtype.startswith("uint"):
            return tirx.Select(inside, shifted, zero)
        return tirx.Select(inside, shifted, tirx.Select(a < zero, tirx.const(-1, dtype), zero))

    return ctx.bb.emit_te(_elementwise(shift), left, right, primfunc_name_hint="bit_shift")


def _is_one(size: tirx.Expr) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == 1


def _broadcast(one: Sequence[tirx.Expr], other: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """The shape of two operands after broadcasting. Raises NotImplementedError if it is known only at run time."""
    rank = max(len(one), len(other))
    ones = [tirx.IntImm("int64", 1)]
    shape = []
    for left, right in zip([*ones * (rank - len(one)), *one], [*ones * (rank - len(other)), *other], strict=True):
        if not (_is_one(left) or _is_one(right) or tvm_ffi.structural_equal(left, right)):
            raise NotImplementedError(f"dimensions '{left}' and '{right}' need not be equal")
        shape.append(right if _is_one(left) else left)
    return shape


def _elementwise(function: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """A tensor expression of two operands with numpy's broadcasting."""

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        def at(tensor: te.Tensor, index: tuple[tirx.Var, ...]) -> tirx.Expr:
            own = index[len(index) - len(tensor.shape) :]
            return tensor(*(0 if _is_one(d) else i for i, d in zip(own, tensor.shape, strict=True)))

        return te.compute(_broadcast(a.shape, b.shape), lambda *i: function(at(a, i), at(b, i)), name="elementwise")

    return compute
