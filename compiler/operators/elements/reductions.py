"""Reductions along axes, running sums, and choices along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import onnx

from heterocc.compiler.operators.record import COUNTS, RANGE, Dims, Operator, Reduction, nothing
from heterocc.compiler.symbolic.contents import array
from heterocc.compiler.symbolic.given import Contents, Given, Shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, larger, number, product_of, smaller


def running(needs: Needs) -> None:
    """CumSum, CumProd and Trilu: one number beside the data."""
    needs.single(1)


def extreme(needs: Needs) -> None:
    """ArgMax and ArgMin: there is an element."""
    needs.at_least(0, needs.given.attribute("axis", 0), 1)


def top_k(needs: Needs) -> None:
    """TopK: there are as many elements as are asked for."""
    given = needs.given
    wanted = given.sizes(1) if given.opset >= 10 else [number(given.attribute("k"))]
    needs.at_least(0, given.attribute("axis", -1), wanted[0] if wanted else None)
    needs.single(1)


def reduced_shapes(given: Given) -> list[Shape] | None:
    """Reductions along computed axes: the rank is known, if their number is."""
    shape, axes = given.shape(), given.shape(1)
    if shape is None or axes is None or not given.has(1) or given.numbers(1) is not None:
        return None
    count = axes[0].number if len(axes) == 1 and axes[0] is not None else None
    if given.attribute("keepdims", 1):
        return [(None,) * len(shape)]
    return [(None,) * (len(shape) - count)] if count is not None and 0 < count <= len(shape) else None


def top_k_shapes(given: Given) -> list[Shape] | None:
    """Values and places: as many as are asked for. A run whose dimension has fewer ends with an error."""
    shape, wanted = given.shape(), given.sizes(1) if given.opset >= 10 else [number(given.attribute("k"))]
    if shape is None or not shape:
        return None
    axis = given.attribute("axis", -1) % len(shape)
    size, count = shape[axis], wanted[0] if wanted else None
    if size is not None and count is not None:
        gap = size - count
        # The code checks a dimension of several names, and the runtime one of a single name before it runs.
        checked = size.number is None and len(gap.names) > 1
        known = gap.number is not None or (gap.least is not None and gap.least >= 0)
        if not (known or checked or given.assume_positive(gap)):
            count = None
    return [(*shape[:axis], count, *shape[axis + 1 :])] * 2


def _all_of(rule: Callable[[Size, Size], Size]) -> Callable[[Given], Contents | None]:
    """A rule for a reduction of a vector."""

    def apply(given: Given) -> Contents | None:
        found, shape = given.sizes(0), given.shape()
        if not found or shape is None or len(shape) != 1 or given.attribute("noop_with_empty_axes", 0):
            return None
        return array([reduce(rule, found)], [1])

    return apply


def _product_contents(given: Given) -> Contents | None:
    found = given.sizes(0)
    shape = given.shape()
    if found is None or shape is None or len(shape) != 1:
        return None
    return array([product_of(found)], [1])


def of_each_input(_node: onnx.NodeProto, inputs: Sequence[Dims], _output: Dims) -> float:
    """One operation for each input element."""
    return float(prod(inputs[0]))


def _reduction(name: str, reduces: Reduction, **facts: Any) -> Operator:
    return Operator(
        name,
        reduces=reduces,
        shapes=reduced_shapes,
        needs=nothing,
        axes=1,
        flops=of_each_input,
        unread="noop_with_empty_axes",
        **facts,
    )


_RISEN: dict[str, Any] = {"magnitude": "risen", "float32_results": RANGE}

OPERATORS = (
    _reduction("ReduceSum", "sum", contents=_all_of(lambda a, b: a + b), settings=True, **_RISEN),
    _reduction("ReduceProd", "product", contents=_product_contents, settings=True, **_RISEN),
    _reduction("ReduceL1", "absolute sum", settings=True, **_RISEN),
    _reduction("ReduceL2", "norm", settings=True, **_RISEN),
    _reduction("ReduceSumSquare", "square sum", **_RISEN),
    _reduction("ReduceLogSum", "log sum", magnitude="risen"),
    _reduction("ReduceLogSumExp", "log sum exp", magnitude="risen"),
    _reduction("ReduceMax", "largest", contents=_all_of(larger), settings=True, between=True),
    _reduction("ReduceMin", "smallest", contents=_all_of(smaller), settings=True, between=True),
    _reduction("ReduceMean", "mean", settings=True, between=True, sums=True),
    *(Operator(name, needs=extreme, choice=0, flops=of_each_input) for name in ("ArgMax", "ArgMin")),
    Operator("CumSum", needs=running, settings=True, magnitude="risen", float32_results=COUNTS, flops=of_each_input),
    Operator("CumProd", needs=running, magnitude="risen", float32_results=COUNTS),
    Operator(
        "TopK",
        shapes=top_k_shapes,
        sized=True,
        needs=top_k,
        settings=True,
        choice=0,
        flops=of_each_input,
        unread="sorted",
    ),
    Operator("Hardmax", needs=nothing, choice=0),
    Operator("Softmax", needs=nothing, sums=True, positive=True, flops=12),
    Operator("LogSoftmax", needs=nothing, sums=True, flops=12),
    *(Operator(n, expanded=True) for n in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")),
)
