"""ONNX Runtime's CDist, of which heterocc knows nothing: all of an operator in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from heterocc.compiler.operators.record import MICROSOFT, RANGE, Dims, Operator
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs


def _shapes(given: Given) -> list[Shape] | None:
    one, other = given.shape(0), given.shape(1)
    return None if one is None or other is None else [(one[0], other[0])]


def _needs(needs: Needs) -> None:
    """Points of as many coordinates."""
    needs.equal(1, 1, needs.size(0, 1))


def _flops(_node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    return 3.0 * output[0] * output[1] * inputs[0][1]


def _convert(ctx: Any, one: Any, other: Any) -> Any:
    """The distances of all pairs of points."""
    from tvm import te, tirx

    from heterocc.compiler.lower.converters.values import dtype_of
    from heterocc.compiler.lower.sized import emit_sized

    rooted = ctx.text("metric", "sqeuclidean") == "euclidean"

    def compute(given: list[Any], _sizes: list[Any], shape: list[Any]) -> Any:
        a, b = given
        k = te.reduce_axis((0, a.shape[1]), name="k")
        squares = te.compute(shape, lambda i, j: te.sum((a[i, k] - b[j, k]) * (a[i, k] - b[j, k]), axis=k))
        return te.compute(shape, lambda i, j: tirx.sqrt(squares[i, j])) if rooted else squares

    return emit_sized(ctx.bb, compute, [one, other], [], ctx.result(), dtype_of(one), "distances")


CDIST = Operator(
    "CDist", MICROSOFT, shapes=_shapes, needs=_needs, flops=_flops, float32_results=RANGE, convert=_convert
)
