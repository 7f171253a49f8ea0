"""DynamicQuantizeLSTM: an LSTM whose weights are 8-bit integers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.quantised.integers import integer_product, signed_weight
from heterocc.compiler.lower.converters.quantised.quantised_operators import dynamic_quantize_linear, known_array
from heterocc.compiler.lower.converters.recurrent.recurrent_operators import Recurrence, layer_of
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.operators.layers.recurrent import LSTM

op = relax.op


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    ctx: Context, data: relax.Expr, weight: relax.Expr, recurrence: relax.Expr, *rest: relax.Expr | None
) -> list[relax.Expr]:
    """An LSTM with weights of 8-bit integers, and of its data rounded to 8 bits by their range.

    The products are of integers where the device computes with these. The state is rounded to 8 bits at each step, by
    the range of all rows, as in ONNX Runtime on one thread; on several it takes that of rows computed together.
    """
    bias, lengths, hidden, cell, peephole, *quantisers = (*rest, *(None,) * 9)[:9]
    inputs, states = (_known(ctx, w, *quantisers[2 * n : 2 * n + 2]) for n, w in enumerate((weight, recurrence)))
    levels, scale, zero = (ctx.bb.emit(v) for v in dynamic_quantize_linear(ctx, data))

    def project(flat: relax.Expr, number: int) -> relax.Expr:
        whole, factor, middle = (part[number] for part in inputs)
        sums = integer_product(ctx, flat, zero, whole, middle)
        if sums is None:
            centred = op.subtract(as_dtype(flat, "float32"), as_dtype(zero, "float32"))
            exact = whole.astype(np.float32) - middle.astype(np.float32)
            sums = op.matmul(ctx.bb.emit(centred), constant(exact))
        factors = ctx.bb.emit(op.multiply(scale, constant(factor)))
        return ctx.bb.emit(op.multiply(as_dtype(ctx.bb.emit(sums), "float32"), factors))

    recurrences = _in_bytes(*states)
    return layer_of(ctx, LSTM, levels, project, recurrences, bias, lengths, hidden, cell, peephole, dtype="float32")


_Quantised = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Weights [directions, rows, 4 · hidden], and their scales and zero points [directions, 4 · hidden]."""


def _known(ctx: Context, weight: relax.Expr, scale: relax.Expr | None, zero: relax.Expr | None) -> _Quantised:
    """Constant weights, quantised by direction or column."""
    whole, factor = known_array(ctx, weight), None if scale is None else known_array(ctx, scale)
    middle = np.zeros(1, np.int8) if zero is None else known_array(ctx, zero)
    if whole is None or factor is None or middle is None:
        raise NotImplementedError("the weights, scales and zero points must be constant")
    shape = (whole.shape[0], whole.shape[2])
    spread = [np.broadcast_to(n if n.size == 1 else n.reshape(shape[0], -1), shape) for n in (factor, middle)]
    return whole, np.ascontiguousarray(spread[0], np.float32), np.ascontiguousarray(spread[1])


def _in_bytes(whole: np.ndarray, factor: np.ndarray, middle: np.ndarray) -> Recurrence:
    """The weights as int8, with their scales, and with these times zero points that do not go into the weights."""
    weight, rest = signed_weight(whole, middle[:, None, :])
    turned = constant(np.ascontiguousarray(weight.transpose(0, 2, 1)))
    offsets = rest.reshape(factor.shape).astype(np.float32) * factor
    totals = constant(weight.sum(axis=1, dtype=np.int32))
    return Recurrence(turned, constant(factor), totals, constant(offsets) if np.any(offsets) else None)
