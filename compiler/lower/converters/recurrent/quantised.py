"""DynamicQuantizeLSTM: an LSTM whose weights are 8-bit integers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.quantised.operators import dynamic_quantize_linear, known_array
from heterocc.compiler.lower.converters.recurrent.operators import layer_of
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype
from heterocc.compiler.lower.straight import constant

op = relax.op


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    ctx: Context, data: relax.Expr, weight: relax.Expr, recurrence: relax.Expr, *rest: relax.Expr | None
) -> list[relax.Expr]:
    """An LSTM with the real values of its weights, and of its data rounded to 8 bits by their range.

    ONNX Runtime rounds the hidden state of each step to 8 bits too; here it is exact.
    """
    bias, lengths, hidden, cell, peephole, *quantisers = (*rest, *(None,) * 9)[:9]
    weights = [_real(ctx, w, *quantisers[2 * n : 2 * n + 2]) for n, w in enumerate((weight, recurrence))]
    levels, scale, zero = (ctx.bb.emit(v) for v in dynamic_quantize_linear(ctx, data))
    centred = op.subtract(as_dtype(levels, "float32"), as_dtype(zero, "float32"))
    rounded = ctx.bb.emit(op.multiply(ctx.bb.emit(centred), scale))
    return layer_of(ctx, "LSTM", rounded, *weights, bias, lengths, hidden, cell, peephole)


def _real(ctx: Context, weight: relax.Expr, scale: relax.Expr | None, zero: relax.Expr | None) -> relax.Expr:
    """The weights [directions, columns, 4 · hidden], quantised by tensor or column, as those of an LSTM, transposed."""
    whole, factor = known_array(ctx, weight), None if scale is None else known_array(ctx, scale)
    middle = np.zeros(1, np.int32) if zero is None else known_array(ctx, zero)
    if whole is None or factor is None or middle is None:
        raise NotImplementedError("the weights, scales and zero points must be constant")
    directions = whole.shape[0]
    centred = whole.astype(np.float32) - middle.astype(np.float32).reshape(-1 if zero is None else directions, 1, -1)
    real = centred * factor.astype(np.float32).reshape(directions, 1, -1)
    return constant(np.ascontiguousarray(real.transpose(0, 2, 1)))
