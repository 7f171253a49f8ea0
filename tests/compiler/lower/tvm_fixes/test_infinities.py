"""Infinities, as masks make them, through reductions: every device agrees with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, helper

from heterocc.runtime.native import opencl_unavailable_reason
from tests.compiler.lower import gpu_run, opencl_run
from tests.compiler.lower.kernel_case import Case, batch
from tests.compiler.lower.kernel_devices import SETTINGS
from tests.compiler.lower.kernel_diff import differences
from tests.compiler.lower.lowered import assert_same, model, run_cpu, run_ort

INF, NAN = np.inf, np.nan
ROWS = np.array(
    [[-INF, -INF, -INF, -INF], [-INF, 1, -INF, 2], [INF, INF, INF, INF], [INF, -INF, 0, INF], [-5, -INF, -7, -6]],
    np.float32,
)
NANS = np.array([[NAN, 1, 2, 3], [1, NAN, 2, 0], [3, 2, 1, NAN], [NAN] * 4, [-INF, -INF, NAN, -INF]], np.float32)


def rows(op_type: str, **attributes: object) -> NodeProto:
    """A node that reads `rows`; its output is named after all that it is."""
    name = "_".join([op_type, *(f"{k}_{v}" for k, v in attributes.items())])
    return helper.make_node(op_type, ["rows"], [name], **attributes)


REDUCTIONS = [
    rows("ReduceMax", axes=[1]),
    rows("ReduceMax", axes=[0], keepdims=0),
    rows("ReduceMin", axes=[1]),
    rows("ReduceLogSumExp", axes=[1]),
    rows("ReduceLogSumExp", axes=[1], keepdims=0),
    rows("Softmax", axis=1),
    rows("LogSoftmax", axis=1),
    rows("Hardmax", axis=1),
    rows("ArgMax", axis=1),
    rows("ArgMax", axis=1, select_last_index=1),
    rows("ArgMin", axis=0, keepdims=0),
    rows("ArgMin", axis=1, keepdims=0, select_last_index=1),
]


def test_reductions_of_infinite_rows_agree_with_onnx_runtime_on_the_cpu() -> None:
    made = model(REDUCTIONS, {"rows": ROWS}, [n.output[0] for n in REDUCTIONS], opset=13)
    assert_same(run_cpu(made, {"rows": ROWS}), run_ort(made, {"rows": ROWS}))


def test_long_masked_rows_have_an_infinite_maximum_in_vectors_and_in_parallel() -> None:
    masked = np.full((64, 512), -INF, np.float32)
    masked[1, 300] = -1e30
    nodes = [helper.make_node("ReduceMax", ["x"], [f"max_{axis}"], axes=[axis], keepdims=0) for axis in (0, 1)]
    made = model(nodes, {"x": masked}, ["max_0", "max_1"], opset=13)
    found = run_cpu(made, {"x": masked})
    for axis in (0, 1):
        np.testing.assert_array_equal(found[f"max_{axis}"], masked.max(axis=axis))


def test_max_pooling_of_infinities_is_infinite_at_the_border_too() -> None:
    x = np.full((1, 1, 4, 4), -INF, np.float32)
    x[0, 0, 3, 3] = 2
    nodes = [
        helper.make_node("MaxPool", ["x"], ["pool"], kernel_shape=[2, 2], pads=[1, 1, 0, 0], strides=[2, 2]),
        helper.make_node("GlobalMaxPool", ["x"], ["all"]),
    ]
    found = run_cpu(model(nodes, {"x": x}, ["pool", "all"]), {"x": x})
    np.testing.assert_array_equal(found["pool"], np.full((1, 1, 2, 2), -INF, np.float32))
    np.testing.assert_array_equal(found["all"], np.array(2, np.float32).reshape(1, 1, 1, 1))


def test_the_largest_finite_number_of_a_model_stays_finite_beside_a_maximum() -> None:
    lowest = np.finfo(np.float32).min
    mask = np.ones((64, 512), bool)
    mask[:, 7] = False
    nodes = [
        helper.make_node("Where", ["mask", "x", "lowest"], ["masked"]),
        helper.make_node("ReduceMax", ["masked"], ["y"], axes=[1], keepdims=0),
    ]
    x = np.full((64, 512), -INF, np.float32)
    x[:, 7] = 3
    made = model(nodes, {"mask": mask, "x": x}, ["y"], {"lowest": np.array(lowest)}, opset=13)
    found = run_cpu(made, {"mask": mask, "x": x})["y"]
    np.testing.assert_array_equal(found, np.full(64, lowest))


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin", "Hardmax"])
def test_an_index_is_one_of_an_element_whatever_the_row_holds(op_type: str) -> None:
    both = np.concatenate([ROWS, NANS])
    made = model([helper.make_node(op_type, ["x"], ["y"], axis=1)], {"x": both}, ["y"])
    found = run_cpu(made, {"x": both})["y"]
    if op_type == "Hardmax":
        np.testing.assert_array_equal(found.sum(axis=1), np.ones(len(both)))
    else:
        np.testing.assert_array_equal(found, run_ort(made, {"x": both})["y"])


def test_argmax_of_integers_at_the_end_of_their_range() -> None:
    x = np.array([[-128, -128, -128], [127, -128, 127], [0, 1, 1]], np.int8)
    nodes = [helper.make_node(op, ["x"], [op], axis=1, keepdims=0) for op in ("ArgMax", "ArgMin")]
    made = model(nodes, {"x": x}, ["ArgMax", "ArgMin"])
    assert_same(run_cpu(made, {"x": x}), run_ort(made, {"x": x}))


HELD_AGAINST_NUMBERS = [
    rows("Relu"),
    rows("Elu"),
    rows("HardSigmoid"),
    helper.make_node("Clip", ["rows", "low", "high"], ["Clip"]),
]


def test_nan_held_against_a_number_stays_nan_on_every_device() -> None:
    constants = {"low": np.array(0, np.float32), "high": np.array(2, np.float32)}
    made = model(HELD_AGAINST_NUMBERS, {"rows": NANS}, [n.output[0] for n in HELD_AGAINST_NUMBERS], constants)
    assert_same(run_cpu(made, {"rows": NANS}), run_ort(made, {"rows": NANS}))
    cases = [
        Case(n.op_type, [n], {"rows": NANS}, {k: v for k, v in constants.items() if k in n.input})
        for n in HELD_AGAINST_NUMBERS
    ]
    for setting in SETTINGS:
        if setting.missing is None:
            assert differences(batch(cases), setting).wrong == ()


BOUNDS = {"low": -1, "high": 1, "none": NAN}
COMPARED = [
    helper.make_node("Max", ["first", "second"], ["Max_of_two"]),
    helper.make_node("Min", ["first", "second"], ["Min_of_two"]),
    helper.make_node("Max", ["first", "low"], ["Max_of_a_number"]),
    helper.make_node("Min", ["high", "first"], ["Min_of_a_number"]),
    helper.make_node("Max", ["first", "low", "second"], ["Max_of_three"]),
    helper.make_node("Clip", ["first", "low", "high"], ["Clip_with_bounds"]),
    helper.make_node("Clip", ["first", "least", "most"], ["Clip_with_computed_bounds"]),
    helper.make_node("Clip", ["first", "none", "high"], ["Clip_with_a_bound_of_NaN"]),
    helper.make_node("Clip", ["first"], ["Clip_without_bounds"]),
    helper.make_node("Clip", ["first", "", "high"], ["Clip_with_one_bound"]),
    helper.make_node("Relu", ["first"], ["Relu"]),
    helper.make_node("LeakyRelu", ["first"], ["LeakyRelu"]),
    helper.make_node("Sign", ["first"], ["Sign"]),
]


def compared(op: NodeProto, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The result of a node of COMPARED in numpy."""
    kind = op.output[0]
    largest = np.finfo(first.dtype).max
    if op.op_type in ("Max", "Min"):
        rule = np.maximum if op.op_type == "Max" else np.minimum
        found = rule(first, second) if "second" in op.input else first
        found = rule(found, -1) if "low" in op.input else found
        return rule(found, 1) if "high" in op.input else found
    if op.op_type == "Clip":
        low = -largest if kind in ("Clip_without_bounds", "Clip_with_one_bound") else -1
        low = -INF if kind == "Clip_with_a_bound_of_NaN" else low
        return np.clip(first, low, largest if kind == "Clip_without_bounds" else 1).astype(first.dtype)
    if op.op_type == "Sign":
        return np.sign(first)
    return np.where(first < 0, 0 if op.op_type == "Relu" else first * first.dtype.type(0.01), first)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_nan_stays_nan_and_infinities_are_bounded_whatever_they_are_compared_with_on_every_device(
    dtype: type[np.floating],
) -> None:
    first = np.array([NAN, 1, NAN, 3, INF, -INF, -2, 0.5] * 5, dtype)
    second = np.array([1, NAN, NAN, 2, NAN, 0, -INF, -0.5] * 5, dtype)
    feeds = {"first": first, "second": second, "least": np.array(-1, dtype), "most": np.array(1, dtype)}
    constants = {name: np.array(number, dtype) for name, number in BOUNDS.items()}
    made = model(COMPARED, feeds, [n.output[0] for n in COMPARED], constants)
    found = run_cpu(made, feeds)
    with np.errstate(invalid="ignore"):
        for op in COMPARED:
            expected = compared(op, first, second)
            np.testing.assert_allclose(found[op.output[0]], expected, rtol=1e-3, err_msg=op.output[0])
    cases = [
        Case(
            f"{n.output[0]}_{np.dtype(dtype)}",
            [n],
            {k: v for k, v in feeds.items() if k in n.input},
            {k: v for k, v in constants.items() if k in n.input},
        )
        for n in COMPARED
        if "Clip_with" not in n.output[0] or "computed" in n.output[0]
    ]
    for setting in SETTINGS if dtype is np.float32 else ():
        # one of each back end: the others differ in limits, which say nothing about numbers
        if setting.missing is None and setting.name in ("pocl", "lavapipe", "cuda"):
            assert differences(batch(cases), setting).wrong == ()


@pytest.mark.opencl
@pytest.mark.skipif(opencl_unavailable_reason() is not None, reason=f"no OpenCL device: {opencl_unavailable_reason()}")
def test_reductions_of_infinite_rows_agree_with_onnx_runtime_on_opencl(tmp_path: Path) -> None:
    nodes = []
    for node in REDUCTIONS:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        nodes.append(gpu_run.node(node.op_type, "rows", **attributes))
    opencl_run.check(gpu_run.Graph({"rows": ROWS}, nodes), tmp_path)
