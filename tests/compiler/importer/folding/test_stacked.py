"""Reductions of stacks of values become operators by element, by the import."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import (
    assert_close,
    model,
    node,
    noise,
    op_types,
    run_imported,
    run_original,
    save,
    value,
)


def stacked(
    operator: str, axis: int, *, opset: int = 18, dtype: int = onnx.TensorProto.FLOAT, other: str = "n", keep: int = 0
) -> onnx.ModelProto:
    """The reduction of a stack of three values."""
    at = np.array([axis])
    late = opset >= 18 or operator == "ReduceSum"
    attributes = {"keepdims": keep} | ({} if late else {"axes": [axis]})
    nodes = [
        node("Neg", "x", "z"),
        *(node("Unsqueeze", f"{name} at", f"u{name}") for name in "xyz"),
        node("Concat", "ux uy uz", "s", axis=axis),
        node(operator, "s at" if late else "s", "r", **attributes),
    ]
    inputs = [value("x", ["n", 5], dtype), value("y", [other, 5], dtype)]
    return model(nodes, inputs, [value("r", None, dtype)], {"at": at}, opset=opset)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    ("operator", "becomes"),
    [
        ("ReduceMax", ["Greater", "Where"] * 2),
        ("ReduceMin", ["Less", "Where"] * 2),
        ("ReduceSum", ["Sum"]),
        ("ReduceMean", ["Mean"]),
    ],
)
def test_values_that_were_stacked_are_combined_themselves(
    operator: str, becomes: list[str], axis: int, tmp_path: Path
) -> None:
    """A third of the time of a word segmenter was the stack of three transposed results for their maximum."""
    opset = 18 if axis else 13
    proto = stacked(operator, axis, opset=opset)
    imported = import_model(proto, keep_dims=True)
    assert op_types(imported) == ["Neg", *becomes]
    x, y = noise(4, 5), noise(4, 5, seed=1)
    x[1, 2] = y[3, 3] = np.nan
    feed = {"x": x, "y": y}
    fixed = import_model(save(tmp_path, proto), shapes={name: a.shape for name, a in feed.items()})
    assert_close(run_imported(fixed, feed), run_original(save(tmp_path, proto), feed))


@pytest.mark.parametrize(
    "proto",
    [
        pytest.param(stacked("ReduceMax", 0, keep=1), id="the dimension stays"),
        pytest.param(stacked("ReduceMax", 0, dtype=onnx.TensorProto.INT8), id="integers"),
        pytest.param(stacked("ReduceMax", 0, other="m"), id="sizes that may differ"),
        pytest.param(stacked("ReduceL1", 0), id="another reduction"),
    ],
)
def test_other_reductions_of_stacks_stay(proto: onnx.ModelProto) -> None:
    """Of sizes that may differ, ONNX Runtime refuses the stack, and would repeat a part of 1."""
    assert "Concat" in op_types(import_model(proto, keep_dims=True))


def test_a_stack_that_others_read_stays() -> None:
    proto = stacked("ReduceMax", 0)
    proto.graph.output.append(value("s"))
    assert "Concat" in op_types(import_model(proto, keep_dims=True))
