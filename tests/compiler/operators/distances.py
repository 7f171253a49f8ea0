"""Two operators of ONNX Runtime of which heterocc knows nothing, each in one record: CDist and ExpandDims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from heterocc.compiler.operators.record import FIRST, MICROSOFT, RANGE, Dims, Operator, nothing
from heterocc.compiler.symbolic.contents import same_contents
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import number


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
    "CDist",
    MICROSOFT,
    shapes=_shapes,
    needs=_needs,
    intervals={0: (-2.0, 2.0), 1: (-2.0, 2.0)},
    flops=_flops,
    float32_results=RANGE,
    convert=_convert,
)


def _expanded_shapes(given: Given) -> list[Shape] | None:
    shape, axis = given.shape(), given.numbers(1)
    if shape is None or axis is None:
        return None
    place = axis[0] % (len(shape) + 1)
    return [(*shape[:place], number(1), *shape[place:])]


def _expand(ctx: Any, data: Any, axis: Any) -> Any:
    from tvm import relax

    return relax.op.expand_dims(data, int(ctx.known(axis)))


EXPAND_DIMS = Operator(
    "ExpandDims",
    MICROSOFT,
    shapes=_expanded_shapes,
    contents=same_contents,
    needs=nothing,
    keeps_order=True,
    moves=FIRST,
    settings=True,
    convert=_expand,
)
