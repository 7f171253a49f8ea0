"""Lowering for OpenCL and for Vulkan, compared with ONNX Runtime on the first device of each."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.lower.gpu_places import APIS, PLACES, device, runner
from tests.compiler.lower.gpu_run import Graph, conv_of, node

RNG = np.random.default_rng(7)
conv = partial(conv_of, RNG)

each_api = pytest.mark.parametrize("place", APIS)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "graph",
    [
        conv((1, 8, 14, 14), (32, 8, 3, 3), "Relu", pads=[1, 1, 1, 1]),
        conv((2, 3, 17, 19), (10, 3, 5, 3), strides=[2, 1], dilations=[1, 2], pads=[2, 0, 1, 3]),
        conv((1, 12, 14, 14), (8, 3, 1, 1), "Sigmoid", "Relu", group=4),
        conv((1, 136, 28, 28), (136, 34, 1, 1), group=4),
        conv((1, 16, 9, 9), (16, 1, 3, 3), pads=[1, 1, 1, 1], group=16),
        conv((1, 4, 11), (6, 4, 3)),
        conv((1, 5, 13, 13), (67, 5, 1, 1), "Tanh"),
        conv((1, 5, 19, 23), (21, 5, 3, 3), "Relu", pads=[1, 1, 1, 1]),
    ],
    ids="padded strided-dilated-odd grouped grouped-partial depthwise one-dimensional prime prime-window".split(),
)
def test_convolutions_match_onnx_runtime(graph: Graph, place: str, tmp_path: Path) -> None:
    runner(place).check(graph, tmp_path, device=device(place))


@each_api
def test_matrix_products_of_every_form_match_onnx_runtime(place: str, tmp_path: Path) -> None:
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
    runner(place).check(graph, tmp_path)


@each_api
def test_reductions_pools_and_norms_match_onnx_runtime(place: str, tmp_path: Path) -> None:
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
    runner(place).check(graph, tmp_path)


@each_api
def test_integers_booleans_and_casts_match_onnx_runtime(place: str, tmp_path: Path) -> None:
    wide = RNG.integers(-9, 9, (4, 6))
    graph = Graph(
        {
            "i": wide,
            "u": wide.astype("uint8"),
            "k": wide.astype("int32"),
            "f": normal(4, 6) * 5,
            "t": wide > 0,
        },
        [
            node("Div", "i", "j"),
            node("Mod", "i", "j"),
            node("Greater", "i", "j"),
            node("Equal", "k", "k"),
            node("Not", "t"),
            node("Cast", "i", to=1),
            node("Cast", "f", to=6),
            node("Cast", "f", to=9),
            node("Cast", "u", to=7),
            node("Cast", "t", to=1),
            node("BitShift", "u", "u2", direction="RIGHT"),
        ],
        {"u2": np.full((4, 6), 2, "uint8"), "j": RNG.integers(1, 5, (4, 6))},
    )
    runner(place).check(graph, tmp_path)


@each_api
def test_data_movement_matches_onnx_runtime(place: str, tmp_path: Path) -> None:
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
    runner(place).check(graph, tmp_path)


@each_api
def test_lowering_twice_gives_the_same_bytes(place: str, tmp_path: Path) -> None:
    graph = conv((1, 4, 8, 8), (8, 4, 3, 3), "Relu")
    assert runner(place).lower(graph, tmp_path)[1].code == runner(place).lower(graph, tmp_path)[1].code
