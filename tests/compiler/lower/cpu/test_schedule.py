"""Every schedule rule on shapes that fit no tile, against ONNX Runtime or numpy in float64."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper

from heterocc.compiler.lower.cpu.schedule import schedule_kernels
from heterocc.compiler.lower.pipeline import KernelModule, kernel_module
from tests.compiler.lower.lowered import assert_same, job, model, run_cpu, run_ort

node = helper.make_node
RNG = np.random.default_rng(3)
LLVM = tvm.target.Target("llvm")

# batch, channels, out channels, groups, size, kernel, stride, dilation, pads
CONVS: dict[str, tuple[Any, ...]] = {
    "prime-width": (1, 5, 32, 1, (17, 23), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "odd-channels": (1, 7, 21, 1, (9, 14), (3, 3), (1, 1), (1, 1), (0, 1, 1, 0)),
    "prime-channels": (2, 3, 17, 1, (8, 8), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    "one-channel-out": (1, 16, 1, 1, (20, 20), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "strided": (1, 8, 40, 1, (27, 31), (5, 3), (2, 3), (1, 1), (2, 0, 1, 1)),
    "dilated": (1, 4, 16, 1, (19, 19), (3, 3), (1, 1), (2, 3), (2, 3, 2, 3)),
    "grouped": (1, 12, 24, 3, (13, 13), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "grouped-odd": (1, 6, 10, 2, (11, 7), (3, 1), (2, 1), (1, 1), (1, 0, 1, 0)),
    "depthwise": (1, 19, 19, 19, (15, 22), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "depthwise-strided": (1, 16, 16, 16, (21, 21), (5, 5), (2, 2), (1, 1), (2, 2, 2, 2)),
    "depthwise-doubled": (1, 6, 12, 6, (10, 10), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "kernel-as-large-as-input": (1, 8, 16, 1, (7, 7), (7, 7), (1, 1), (1, 1), (0, 0, 0, 0)),
    "signal": (2, 6, 32, 1, (61,), (5,), (2,), (1,), (2, 1)),
    "volume": (1, 3, 16, 1, (6, 9, 7), (3, 2, 3), (1, 2, 1), (1, 1, 1), (1, 0, 1, 1, 1, 0)),
}


def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def check(nodes: list[Any], inputs: dict[str, np.ndarray], outputs: list[str], weights: dict[str, np.ndarray]) -> None:
    made = model(nodes, inputs, outputs, weights)
    assert_same(run_cpu(made, inputs), run_ort(made, inputs), rtol=1e-3)


def test_convolutions_of_all_kinds_agree_with_onnx_runtime() -> None:
    nodes, inputs, outputs, weights = [], {}, [], {}
    for name, (batch, channels, out, groups, size, kernel, stride, dilation, pads) in CONVS.items():
        name = name.replace("-", "_")
        inputs[f"x_{name}"] = floats(batch, channels, *size)
        weights[f"w_{name}"] = floats(out, channels // groups, *kernel) / np.float32(np.sqrt(channels * 9 / groups))
        weights[f"b_{name}"] = floats(out)
        attributes = {"group": groups, "strides": stride, "dilations": dilation, "pads": pads}
        arguments = [f"x_{name}", f"w_{name}", f"b_{name}"]
        nodes += [
            node("Conv", arguments[:2], [f"plain_{name}"], **attributes),
            node("Conv", arguments, [f"biased_{name}"], **attributes),
            node("Add", [f"biased_{name}", f"plain_{name}"], [f"sum_{name}"]),
            node("Relu", [f"sum_{name}"], [f"y_{name}"]),
        ]
        outputs += [f"plain_{name}", f"y_{name}"]
    check(nodes, inputs, outputs, weights)


def test_a_transposed_convolution_and_an_epilogue_in_another_layout_agree() -> None:
    nodes = [
        node("ConvTranspose", ["x", "w"], ["up"], strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 0]),
        node("Conv", ["x", "v"], ["c"]),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        node("Exp", ["t"], ["y"]),
    ]
    weights = {"w": floats(6, 16, 3, 3) / 6, "v": floats(20, 6, 1, 1) / 6}
    check(nodes, {"x": floats(1, 6, 9, 11)}, ["up", "y"], weights)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matrix_products_of_odd_sizes_agree(dtype: str) -> None:
    nodes, inputs, outputs, weights = [], {}, [], {}
    for i, (m, k, n) in enumerate([(1, 1, 1), (1, 37, 1000), (7, 33, 40), (13, 64, 97), (31, 5, 48), (64, 100, 256)]):
        inputs[f"x{i}"], inputs[f"z{i}"] = floats(m, k, dtype=dtype), floats(3, k, n, dtype=dtype)
        weights[f"w{i}"], weights[f"t{i}"] = floats(k, n, dtype=dtype), floats(n, k, dtype=dtype)
        weights[f"b{i}"] = floats(n, dtype=dtype)
        nodes += [
            node("MatMul", [f"x{i}", f"w{i}"], [f"weight{i}"]),
            node("MatMul", [f"x{i}", f"z{i}"], [f"data{i}"]),
            node("Gemm", [f"x{i}", f"t{i}", f"b{i}"], [f"gemm{i}"], transB=1, alpha=0.5),
        ]
        outputs += [f"weight{i}", f"data{i}", f"gemm{i}"]
    made = model(nodes, inputs, outputs, weights)
    found = run_cpu(made, inputs)
    rtol = 1e-4 if dtype == "float32" else 1e-9
    for i in range(6):
        x = inputs[f"x{i}"].astype(np.float64)
        for name, right in (
            ("weight", x @ weights[f"w{i}"]),
            ("data", x @ inputs[f"z{i}"]),
            ("gemm", 0.5 * (x @ weights[f"t{i}"].T) + weights[f"b{i}"]),
        ):
            np.testing.assert_allclose(found[f"{name}{i}"], right, rtol=rtol, atol=rtol * np.abs(right).max())


@pytest.mark.parametrize(
    "shape",
    [
        (3, 1009),
        (2, 5, 7, 9),
        *(pytest.param(s, marks=pytest.mark.slow) for s in [(17, 49, 64), (129,), (64, 8, 12, 33)]),
    ],
)
def test_reductions_along_every_axis_agree(shape: tuple[int, ...]) -> None:
    nodes, outputs, weights = [], [], {}
    for axis in range(len(shape)):
        weights[f"a{axis}"] = np.array([axis], np.int64)
        for kind in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2"):
            nodes.append(node(kind, ["x", f"a{axis}"], [f"{kind}{axis}"], keepdims=axis % 2))
        for kind in ("Softmax", "ArgMax", "LogSoftmax"):
            nodes.append(node(kind, ["x"], [f"{kind}{axis}"], axis=axis))
        outputs += [f"{k}{axis}" for k in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2")]
        outputs += [f"{k}{axis}" for k in ("Softmax", "ArgMax", "LogSoftmax")]
    weights["all"] = np.arange(len(shape), dtype=np.int64)
    nodes.append(node("ReduceSum", ["x", "all"], ["total"], keepdims=0))
    nodes.append(node("ReduceMean", ["x", "all"], ["mean"], keepdims=0))
    check(nodes, {"x": floats(*shape)}, [*outputs, "total", "mean"], weights)


def test_pooling_and_normalisation_of_odd_sizes_agree() -> None:
    nodes = [
        node("MaxPool", ["x"], ["p0"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
        node("AveragePool", ["x"], ["p1"], kernel_shape=[3, 3], strides=[1, 2], pads=[1, 1, 0, 1]),
        node("AveragePool", ["x"], ["p2"], kernel_shape=[2, 5], count_include_pad=1, pads=[1, 2, 0, 2]),
        node("GlobalAveragePool", ["x"], ["p3"]),
        node("GlobalMaxPool", ["x"], ["p4"]),
        node("InstanceNormalization", ["x", "s", "b"], ["p5"]),
        node("LayerNormalization", ["x", "ls", "lb"], ["p6", "mean", "deviation"], axis=2),
        node("LRN", ["x"], ["p7"], size=3),
    ]
    weights = {"s": floats(17), "b": floats(17), "ls": floats(23, 29), "lb": floats(23, 29)}
    outputs = [f"p{i}" for i in range(8)] + ["mean", "deviation"]
    check(nodes, {"x": floats(2, 17, 23, 29)}, outputs, weights)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "int8", "uint8", "bool"])
def test_elementwise_and_moving_kernels_agree_for_every_dtype(dtype: str) -> None:
    x = (RNG.standard_normal((5, 33, 70)) * 4).astype(dtype)
    y = (RNG.standard_normal((5, 1, 70)) * 4).astype(dtype)
    weights = {"pads": np.array([0, 1, 2, 1, 0, 3], np.int64), "rows": np.array([32, 0, 7, 7], np.int64)}
    nodes = [
        node("Transpose", ["x"], ["transposed"], perm=[2, 0, 1]),
        node("Concat", ["x", "y", "x"], ["joined"], axis=1),
        node("Pad", ["x", "pads"], ["padded"]),
        node("Gather", ["x", "rows"], ["gathered"], axis=1),
        node("Cast", ["x"], ["cast"], to=helper.np_dtype_to_tensor_dtype(np.dtype("float32"))),
    ]
    outputs = ["transposed", "joined", "padded", "gathered", "cast"]
    inputs = {"x": x, "y": y}
    if dtype in ("float32", "int32", "int64", "uint8"):
        nodes.append(node("Where", ["mask", "x", "y"], ["chosen"]))
        outputs.append("chosen")
        inputs["mask"] = RNG.random((5, 33, 70)) > 0.5
    if dtype != "bool":
        nodes += [node("Add", ["x", "y"], ["a"]), node("Mul", ["a", "x"], ["product"])]
        outputs.append("product")
    if dtype in ("float32", "float64", "int32", "int64"):
        nodes.append(node("Less", ["x", "y"], ["less"]))
        outputs.append("less")
    check(nodes, inputs, outputs, weights)


def compiled(nodes: list[Any], inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray]) -> KernelModule:
    last = str(nodes[-1].output[0])
    return kernel_module(job(model(nodes, inputs, [last], weights)), LLVM)


def test_no_big_kernel_stays_serial() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Exp", ["p"], ["e"]),
        node("Softmax", ["e"], ["s"]),
        node("MatMul", ["s", "m"], ["t"]),
        node("Transpose", ["t"], ["y"], perm=[0, 2, 3, 1]),
    ]
    weights = {"w": floats(32, 8, 3, 3), "m": floats(48, 64)}
    module = schedule_kernels(compiled(nodes, {"x": floats(1, 8, 96, 96)}, weights), LLVM)
    texts = {gv.name_hint: f.script() for gv, f in module.mod.functions_items() if gv.name_hint != "main"}
    assert len(texts) == 5
    assert [name for name, text in texts.items() if "T.parallel(" not in text] == []


def test_a_convolutions_weight_is_packed_once_for_all_calls_that_share_it() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Conv", ["a", "w"], ["b"]), node("Conv", ["b", "w"], ["y"])]
    weight = floats(16, 16, 1, 1)
    module = schedule_kernels(compiled(nodes, {"x": floats(1, 16, 6, 6)}, {"w": weight}), LLVM)
    assert [a.shape for a in module.arrays.values()] != [weight.shape]
    assert len(module.arrays) == 1
    np.testing.assert_array_equal(np.sort(next(iter(module.arrays.values())), axis=None), np.sort(weight, axis=None))


def test_nothing_keeps_a_models_weights_after_its_kernels_are_made() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("MatMul", ["c", "m"], ["y"])]
    weights = {"w": floats(29, 16, 1, 1), "m": floats(13, 37)}
    module = compiled(nodes, {"x": floats(1, 16, 11, 13)}, weights)
    arrays = [weakref.ref(a) for a in module.arrays.values()]
    assert len(arrays) == 2
    schedule_kernels(module, LLVM)
    del module, weights
    gc.collect()
    assert [a() for a in arrays if a() is not None] == []


def test_sorting_keeps_its_place_and_its_order() -> None:
    x = floats(4, 300)
    nodes = [node("TopK", ["x", "k"], ["v", "i"]), node("Exp", ["v"], ["e"])]
    check(nodes, {"x": x}, ["v", "i", "e"], {"k": np.array([7], np.int64)})


def test_a_scatter_starts_no_threads_for_each_of_its_slices() -> None:
    inputs = {"x": floats(9, 5), "u": floats(4, 5)}
    indices = np.array([[3], [8], [0], [5]], np.int64)
    scatter = [node("ScatterND", ["x", "i", "u"], ["y"])]
    module = compiled(scatter, inputs, {"i": indices})
    assert "T.parallel" in module.mod.script()
    assert "T.parallel" not in schedule_kernels(module, LLVM).mod.script()
    check(scatter, inputs, ["y"], {"i": indices})
