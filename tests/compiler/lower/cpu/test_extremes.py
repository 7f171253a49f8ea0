"""Maxima and minima with a NaN at any place give the extreme of all that is a number (decision 7)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import NodeProto, helper

from tests.compiler.lower.cpu.test_symbolic import compiled
from tests.compiler.lower.lowered import model, run_cpu
from tests.symbolic_models import dynamic_model

node = helper.make_node
RNG = np.random.default_rng(46)
NAN = np.nan


def sprinkled(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Numbers of which some are NaN: the first row whole, the second first element, others anywhere."""
    x = RNG.standard_normal(shape).astype(dtype)
    x[RNG.random(shape) < 0.25] = NAN
    x[0], x.reshape(shape[0], -1)[1, 0] = NAN, NAN
    return x


def extreme(x: np.ndarray, axes: tuple[int, ...], rule: Callable[..., np.ndarray] = np.fmax.reduce) -> np.ndarray:
    """The extreme of the numbers, NaN where the first term is: that of NaN alone is NaN."""
    first = x[tuple(0 if d in axes else slice(None) for d in range(x.ndim))]
    return np.where(np.isnan(first), NAN, rule(x, axis=axes))


def windows(x: np.ndarray, size: int, stride: int = 1, pad: int = 0) -> np.ndarray:
    """The largest number in each window, -inf where it has none."""
    ends = [(0, 0), (0, 0), *((pad, pad) for _ in x.shape[2:])]
    padded = np.pad(np.where(np.isnan(x), -np.inf, x), ends, constant_values=-np.inf)
    axes = tuple(range(2, x.ndim))
    views = np.lib.stride_tricks.sliding_window_view(padded, [size] * len(axes), axes)
    views = views[(..., *[slice(None, None, stride)] * len(axes), *[slice(None)] * len(axes))]
    return views.max(tuple(range(x.ndim, views.ndim)))


def reduced(op_type: str, x: str, *axes: int) -> NodeProto:
    """A reduction named after all that it is."""
    name = "_".join([op_type, x, *map(str, axes)])
    return node(op_type, [x], [name], axes=list(axes), keepdims=0)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_nan_hides_no_number_from_scheduled_loops(dtype: str) -> None:
    feeds = {"x": sprinkled(6, 40, 16, dtype=dtype), "z": sprinkled(2, 3, 8, 8, 8, dtype=dtype)}
    nodes = [
        *(reduced("ReduceMax", "x", *axes) for axes in ((0,), (1,), (2,), (1, 2))),
        reduced("ReduceMin", "x", 2),
        node("MaxPool", ["z"], ["pooled"], kernel_shape=[2] * 3, strides=[2] * 3),
    ]
    found = run_cpu(model(nodes, feeds, [n.output[0] for n in nodes], opset=13), feeds)
    for axes in ((0,), (1,), (2,), (1, 2)):
        name = "_".join(["ReduceMax_x", *map(str, axes)])
        np.testing.assert_array_equal(found[name], extreme(feeds["x"], axes), name)
    np.testing.assert_array_equal(found["ReduceMin_x_2"], extreme(feeds["x"], (2,), np.fmin.reduce))
    np.testing.assert_array_equal(found["pooled"], windows(feeds["z"], 2, 2))


def test_a_nan_hides_no_number_from_kernels_of_any_size(tmp_path: object) -> None:
    nodes = [
        *(reduced("ReduceMax", "x", *axes) for axes in ((0,), (1,), (2,))),
        reduced("ReduceMin", "w", 1),
        node("MaxPool", ["z"], ["pooled"], kernel_shape=[3, 3], pads=[1] * 4),
        node("ReduceMax", ["x"], ["most"], axes=[2]),
        node("Sub", ["x", "most"], ["below"]),
    ]
    ends = {"x": ("float32", ("n", "m", "k")), "w": ("float64", ("n", "m")), "z": ("float32", ("n", 2, "h", "v"))}
    outputs = [n.output[0] for n in nodes if n.output[0] != "most"]
    run = compiled(dynamic_model(nodes, ends, outputs, {}), tmp_path)
    for n, m, k, h, v in ((2, 3, 5, 4, 6), (4, 20, 35, 9, 33)):
        x, w, z = sprinkled(n, m, k), sprinkled(n, m, dtype="float64"), sprinkled(n, 2, h, v)
        maxima = [extreme(x, (axis,)) for axis in range(3)]
        wanted = [*maxima, extreme(w, (1,), np.fmin.reduce), windows(z, 3, 1, 1), x - maxima[2][..., None]]
        for name, got, right in zip(outputs, run({"x": x, "w": w, "z": z}), wanted, strict=True):
            np.testing.assert_array_equal(got, right, name)
    x, w, z = (np.zeros(shape, dtype) for shape, dtype in (((2, 0, 3), "f"), ((2, 0), "d"), ((2, 2, 4, 4), "f")))
    found = dict(zip(outputs, run({"x": x, "w": w, "z": z}), strict=True))
    assert (found["ReduceMax_x_1"] == -np.inf).all()


def test_rows_that_are_reduced_and_given_out_are_nan_only_if_they_begin_with_nan() -> None:
    feeds = {"x": sprinkled(9, 70), "y": sprinkled(3, 300, 5)}
    nodes = [
        *(reduced(op, x, 1) for x in feeds for op in ("ReduceMax", "ReduceMin")),
        node("Unsqueeze", ["ReduceMax_x_1", "one"], ["most"]),
        node("Sub", ["most", "x"], ["below"]),
    ]
    made = model(nodes, feeds, [*(n.output[0] for n in nodes[:4]), "below"], {"one": np.array([1])}, opset=13)
    found = run_cpu(made, feeds)
    for name, x in feeds.items():
        np.testing.assert_array_equal(found[f"ReduceMax_{name}_1"], extreme(x, (1,)))
        np.testing.assert_array_equal(found[f"ReduceMin_{name}_1"], extreme(x, (1,), np.fmin.reduce))
    np.testing.assert_array_equal(found["below"], extreme(feeds["x"], (1,))[:, None] - feeds["x"])
