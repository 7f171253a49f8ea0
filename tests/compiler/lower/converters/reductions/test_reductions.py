"""Reductions that differ from those of most models: of nothing, of integers, and of NaN along computed axes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import assert_close, model, node, run_original, save, value

NAN, INF = np.nan, np.inf
EXTREMES = ("ReduceMax", "ReduceMin", "ReduceLogSumExp")


def check(folder: Path, made: onnx.ModelProto, feed: dict[str, np.ndarray]) -> None:
    """The same results as ONNX Runtime's; memory of results is used before, so that what is not written differs."""
    path = save(folder, made)
    compile_model(path, folder / "m.hcb", devices="CPU", check=False)
    right = run_original(path, feed)
    with load(folder / "m.hcb") as session:
        for _ in range(2):
            found = list(session.run(feed).values())
            for array in found:
                array.fill(7)
            del array
        assert_close(list(session.run(feed).values()), right)


def test_reductions_of_a_fixed_dimension_of_0_give_what_nothing_gives(tmp_path: Path) -> None:
    nodes, inputs, outputs, feed = [], [], [], {}
    for dtype in (np.float64, np.int32):
        kind, name = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.dtype(dtype).name
        inputs.append(value(name, ["n", 0, 3], kind))
        feed[name] = np.zeros((5, 0, 3), dtype)
        for op_type in (*EXTREMES, "ReduceMean", "ReduceL2", "ReduceSumSquare", "ReduceProd"):
            nodes.append(node(op_type, f"{name} axis", f"{op_type}_{name}", keepdims=len(nodes) % 2))
            outputs.append(value(f"{op_type}_{name}", None, kind))
    check(tmp_path, model(nodes, inputs, outputs, {"axis": np.array([1])}, opset=20), feed)


def test_computed_axes_and_integers_reduce_as_known_axes_and_real_numbers(tmp_path: Path) -> None:
    rows = [[1, 2, NAN, 0], [-INF] * 4, [INF, 1, 2, 3], [NAN, 1, 2, 0], [3, 2, 1, NAN], [-INF, 1, 0, 2]]
    feed = {"x": np.array(rows, np.float32), "i": np.arange(1, 13, dtype=np.int32).reshape(3, 4), "a": np.array([1])}
    nodes = [node(op_type, "x a", f"{op_type}_x") for op_type in EXTREMES]
    nodes += [node(op_type, "i a", f"{op_type}_i") for op_type in ("ReduceLogSumExp", "ReduceL2")]
    nodes += [node(op_type, "i one", f"{op_type}_known") for op_type in ("ReduceLogSum", "ReduceL2")]
    outputs = [value(n.output[0], None, 1 if n.input[0] == "x" else 6) for n in nodes]
    inputs = [value("x", ["n", 4]), value("i", ["m", 4], 6), value("a", [1], 7)]
    check(tmp_path, model(nodes, inputs, outputs, {"one": np.array([1])}, opset=20), feed)


@pytest.mark.parametrize(
    "axes", [[], *(pytest.param(axes, marks=pytest.mark.slow) for axes in ([1], [0, -1]))], ids=str
)
def test_computed_axes_of_which_there_may_be_none_leave_the_elements_apart_if_asked(
    tmp_path: Path, axes: list[int]
) -> None:
    kinds = ("ReduceSum", "ReduceMean", "ReduceL2", "ReduceSumSquare", "ReduceMax", "ReduceLogSumExp")
    nodes = [node(kind, "x a", kind, noop_with_empty_axes=1) for kind in kinds]
    inputs, outputs = [value("x", ["n", 3]), value("a", ["k"], 7)], [value(kind, None) for kind in kinds]
    feed = {"x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3), "a": np.array(axes, np.int64)}
    check(tmp_path, model(nodes, inputs, outputs, {}, opset=20), feed)
