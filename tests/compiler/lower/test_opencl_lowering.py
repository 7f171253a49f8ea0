from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from gpu_run import Graph, imported, node, whole
from opencl_run import check, first_device, lower, run

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.devices.names import generic_gpu
from heterocc.compiler.lower.opencl.lowering import OpenclLowering
from heterocc.runtime.native import unavailable_reason

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.skipif(unavailable_reason() is not None, reason=f"no OpenCL device: {unavailable_reason()}"),
]

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def conv(shape: tuple[int, ...], weight: tuple[int, ...], *after: str, **attributes: object) -> Graph:
    """A convolution with bias, followed by elementwise operators."""
    nodes = [node("Conv", "x", "w", "b", outputs=["c0"], **attributes)]
    for index, op_type in enumerate(after):
        nodes.append(node(op_type, f"c{index}", outputs=[f"c{index + 1}"]))
    return Graph({"x": normal(*shape)}, nodes, {"w": normal(*weight) / 8, "b": normal(weight[0])})


@pytest.mark.parametrize(
    "graph",
    [
        conv((1, 8, 14, 14), (32, 8, 3, 3), "Relu", pads=[1, 1, 1, 1]),
        conv((2, 3, 17, 19), (10, 3, 5, 3), strides=[2, 1], dilations=[1, 2], pads=[2, 0, 1, 3]),
        conv((1, 12, 14, 14), (8, 3, 1, 1), "Sigmoid", "Relu", group=4),
        conv((1, 16, 9, 9), (16, 1, 3, 3), pads=[1, 1, 1, 1], group=16),
        conv((1, 4, 11), (6, 4, 3)),
        conv((1, 5, 13, 13), (67, 5, 1, 1), "Tanh"),
        conv((1, 5, 19, 23), (21, 5, 3, 3), "Relu", pads=[1, 1, 1, 1]),
    ],
    ids=["padded", "strided-dilated-odd", "grouped", "depthwise", "one-dimensional", "prime", "prime-window"],
)
def test_convolutions_match_onnx_runtime(graph: Graph, tmp_path: Path) -> None:
    check(graph, tmp_path)


def test_weights_are_repacked_only_where_one_kernel_reads_them(tmp_path: Path) -> None:
    x = {"x": normal(1, 8, 6, 6)}
    graph = Graph(
        x,
        [
            node("Conv", "x", "own"),
            node("Conv", "x", "other"),
            node("Conv", "x", "both", strides=[2, 2]),
            node("Conv", "x", "both", strides=[3, 3]),
        ],
        {name: normal(16, 8, 3, 3) for name in ("own", "other", "both")},
    )
    lowered = check(graph, tmp_path)
    assert sorted(p.ndim for p in lowered.params) == [4, 5, 5]


def test_a_matrix_product_that_is_masked_by_booleans_matches_onnx_runtime(tmp_path: Path) -> None:
    mask = RNG.integers(0, 2, (1, 1, 4, 4)).astype(bool)
    graph = Graph(
        {"a": normal(1, 2, 4, 8), "b": normal(1, 2, 8, 4), "mask": mask},
        [node("MatMul", "a", "b", outputs=["ab"]), node("Where", "mask", "ab", "low")],
        {"low": np.array(-1e9, np.float32)},
    )
    check(graph, tmp_path)


def test_matrix_products_of_every_form_match_onnx_runtime(tmp_path: Path) -> None:
    graph = Graph(
        {"a": normal(6, 40), "b": normal(40, 24), "p": normal(3, 5, 20), "q": normal(3, 20, 7), "v": normal(1, 40)},
        [
            node("MatMul", "a", "b"),
            node("MatMul", "p", "q"),
            node("MatMul", "a", "w"),
            node("Gemm", "a", "wt", "bias", transB=1, alpha=0.5),
            node("Gemm", "v", "w", "bias"),
            node("Gemm", "b", "b", transA=1),
        ],
        {"w": normal(40, 48), "wt": normal(48, 40), "bias": normal(48)},
    )
    check(graph, tmp_path)


def test_reductions_pools_and_norms_match_onnx_runtime(tmp_path: Path) -> None:
    graph = Graph(
        {"x": normal(2, 6, 9, 10), "m": normal(8, 33)},
        [
            node("ReduceMean", "x", axes=[2, 3]),
            node("ReduceMax", "m", keepdims=0),
            node("ReduceL2", "m", axes=[0]),
            node("ArgMax", "m", axis=1),
            node("Softmax", "m"),
            node("LayerNormalization", "m", "scale", "shift"),
            node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("AveragePool", "x", kernel_shape=[2, 2]),
            node("GlobalAveragePool", "x"),
        ],
        {"scale": normal(33), "shift": normal(33)},
    )
    check(graph, tmp_path)


def test_elementwise_functions_match_onnx_runtime(tmp_path: Path) -> None:
    names = "Exp Tanh Sigmoid Erf Sin Tan Sinh Atan Asinh Floor Ceil Round Abs Neg Sign Softplus HardSwish Elu".split()
    positive = "Log Sqrt Reciprocal".split()
    small = "Asin Acos Atanh".split()
    x = normal(5, 7)
    nodes = [node(op_type, "x") for op_type in names]
    nodes += [node(op_type, "p") for op_type in positive] + [node(op_type, "s") for op_type in small]
    nodes += [
        node("Pow", "p", "x"),
        node("PRelu", "x", "s"),
        node("Where", "c", "x", "p"),
    ]
    graph = Graph({"x": x, "p": np.abs(x) + 0.5, "s": np.tanh(x) * np.float32(0.9), "c": x > 0}, nodes)
    check(graph, tmp_path)


def test_integers_booleans_and_casts_match_onnx_runtime(tmp_path: Path) -> None:
    wide = RNG.integers(-9, 9, (4, 6))
    graph = Graph(
        {
            "i": wide,
            "j": RNG.integers(1, 5, (4, 6)),
            "u": wide.astype("uint8"),
            "k": wide.astype("int32"),
            "f": normal(4, 6) * 5,
        },
        [
            node("Div", "i", "j"),
            node("Mod", "i", "j"),
            node("Greater", "i", "j"),
            node("Equal", "k", "k"),
            node("Cast", "i", to=1),
            node("Cast", "f", to=6),
            node("Cast", "f", to=9),
            node("Cast", "u", to=7),
            node("BitShift", "u", "u2", direction="RIGHT"),
        ],
        {"u2": np.full((4, 6), 2, "uint8")},
    )
    check(graph, tmp_path)


def test_infinite_doubles_are_not_taken_for_floats_by_the_drivers_compiler(tmp_path: Path) -> None:
    x = RNG.standard_normal((5, 37))
    graph = Graph({"x": x}, [node("ArgMax", "x", axis=1), node("Where", "c", "x", "inf")], {"inf": np.array(-np.inf)})
    check(dataclasses.replace(graph, inputs={"x": x, "c": x > 0}), tmp_path)


def test_data_movement_matches_onnx_runtime(tmp_path: Path) -> None:
    index = np.array([2, 0, 1])
    graph = Graph(
        {"x": normal(3, 4, 5), "u": normal(3, 4, 5)},
        [
            node("Transpose", "x", perm=[2, 0, 1]),
            node("Concat", "x", "u", axis=1),
            node("Gather", "x", "index"),
            node("GatherElements", "x", "along", axis=1),
            node("ScatterElements", "x", "along", "part", axis=1),
            node("ScatterND", "x", "rows", "planes"),
            node("Pad", "x", "pads"),
            node("Slice", "x", "starts", "ends", "axes", "steps"),
            node("Resize", "image", "", "", "sizes", mode="linear", coordinate_transformation_mode="half_pixel"),
        ],
        {
            "index": index,
            "along": RNG.integers(0, 4, (3, 2, 5)),
            "part": normal(3, 2, 5),
            "rows": np.array([[1], [2]]),
            "planes": normal(2, 4, 5),
            "pads": np.array([0, 1, 2, 1, 0, 0]),
            "starts": np.array([3]),
            "ends": np.array([0]),
            "axes": np.array([1]),
            "steps": np.array([-2]),
            "image": normal(1, 2, 5, 5),
            "sizes": np.array([1, 2, 9, 7]),
        },
    )
    check(graph, tmp_path)


def test_scans_and_sorts_are_refused_with_the_reason(tmp_path: Path) -> None:
    graph = Graph(
        {"x": normal(4, 9)},
        [node("CumSum", "x", "axis"), node("TopK", "x", "k", outputs=["values", "indices"])],
        {"axis": np.array(1), "k": np.array([3])},
    )
    model = imported(graph, tmp_path)
    answers = [OpenclLowering().trial(model, n.name, first_device()) for n in model.graph.nodes]
    assert all(answers), answers


def test_a_dtype_that_the_device_lacks_is_refused_and_names_the_node(tmp_path: Path) -> None:
    model = imported(Graph({"x": normal(4).astype("float16")}, [node("Exp", "x")]), tmp_path)
    device = dataclasses.replace(first_device(), dtypes=frozenset(["float32"]))
    with pytest.raises(LoweringError, match="the device has no float16") as caught:
        OpenclLowering().lower(whole(model, device))
    assert model.graph.nodes[0].name in (caught.value.where or "")


def test_code_for_a_device_with_small_groups_runs_on_a_larger_one(tmp_path: Path) -> None:
    graph = conv((1, 6, 10, 10), (12, 6, 3, 3), "Relu")
    device = dataclasses.replace(generic_gpu(), target={**generic_gpu().target, "max_num_threads": 16})
    model, lowered = lower(graph, tmp_path, device)
    assert np.allclose(run(model, lowered, graph.inputs)[0], graph.reference()[0], atol=1e-5)


def test_lowering_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    graph = conv((1, 4, 8, 8), (8, 4, 3, 3), "Relu")
    assert lower(graph, tmp_path)[1].code == lower(graph, tmp_path)[1].code


def test_the_parts_of_a_lowered_partition_are_named_and_dumped(tmp_path: Path) -> None:
    model, lowered = lower(conv((1, 4, 8, 8), (32, 4, 3, 3), "Relu"), tmp_path)
    assert {n for kernel in lowered.kernels for n in kernel.nodes} == {n.name for n in model.graph.nodes}
    dumps = dict(lowered.dumps)
    source = "".join(text for name, text in dumps.items() if name.endswith(".cl"))
    assert lowered.kernels[0].symbol in source
    assert lowered.requires == ()
    weight = next(p for p in lowered.params if p.ndim == 5)
    assert weight.shape == (2, 4, 3, 3, 16) or not first_device().software


def test_dumps_name_the_rule_that_scheduled_a_kernel(tmp_path: Path) -> None:
    _, lowered = lower(conv((1, 4, 8, 8), (32, 4, 3, 3), "Relu"), tmp_path)
    assert '"heterocc.rule": "register tile"' in dict(lowered.dumps)["scheduled.py"]
