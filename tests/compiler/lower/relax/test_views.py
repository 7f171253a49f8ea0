"""Reshapes that are views of their argument, and not kernels that copy it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.pipeline import kernel_module
from tests.compiler.lower.cpu.generate.generated import AVX2, target_of
from tests.compiler.lower.lowered import job
from tests.symbolic_models import dynamic_model

node = helper.make_node


@pytest.mark.parametrize(("channels", "stride"), [(160, 441), (8, 2)])
def test_columns_of_a_strided_convolution_are_rows_without_a_copy(channels: int, stride: int) -> None:
    """Their number is a quotient and one, and that of their elements a multiple of the quotient, and a number."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[stride], pads=[1, 2]),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 1]),
        node("Reshape", ["t", "shape"], ["r"]),
        node("Sigmoid", ["r"], ["y"]),
    ]
    constants = {"w": np.ones((channels, 1, 3), np.float32), "shape": np.array([0, -1])}
    model = dynamic_model(nodes, {"x": ("float32", ("b", 1, "n"))}, ["y"], constants)
    kernels = kernel_module(job(import_model(model, keep_dims=True)), target_of(AVX2)).kernels
    assert ("Reshape_2",) not in [kernel.nodes for kernel in kernels]


@pytest.mark.parametrize("order", [(3, 0, 2, 1), (2, 3, 0, 1)])
@pytest.mark.parametrize("stride", [0, 2])
def test_dimensions_in_any_order_are_joined_without_a_copy(order: tuple[int, ...], stride: int) -> None:
    """Sizes of the model's inputs, or of a convolution's result, which are quotients."""
    first = [node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1] * 4)] if stride else [node("Neg", ["x"], ["c"])]
    nodes = [
        *first,
        node("Transpose", ["c"], ["t"], perm=order),
        node("Erf", ["t"], ["e"]),
        node("Reshape", ["e", "shape"], ["r"]),
        node("Softmax", ["r"], ["y"]),
    ]
    constants = {"w": np.ones((24, 24, 3, 3), np.float32), "shape": np.array([-1, 24])}
    model = dynamic_model(nodes, {"x": ("float32", ("n", 24, "h", "w_"))}, ["y"], constants)
    kernels = kernel_module(job(import_model(model, keep_dims=True)), target_of(AVX2)).kernels
    assert ("Reshape_3",) not in [kernel.nodes for kernel in kernels]


@pytest.mark.parametrize("between", [[], [node("Relu", ["t"], ["t2"])]], ids=["turned", "turned and clipped"])
def test_a_reshape_that_joins_turned_dimensions_of_any_size_is_not_fused_with_them(
    between: list[onnx.NodeProto],
) -> None:
    """One kernel of both would divide the place of each element, which took ten times as long."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        *between,
        node("Reshape", ["t2" if between else "t", "shape"], ["r"]),
        node("Neg", ["r"], ["y"]),
    ]
    model = dynamic_model(nodes, {"x": ("float32", ("b", 160, "n"))}, ["y"], {"shape": np.array([0, -1])})
    module = kernel_module(job(import_model(model, keep_dims=True)), target_of(AVX2))
    turned = ("Transpose_0", "Relu_1") if between else ("Transpose_0",)
    assert [kernel.nodes for kernel in module.kernels] == [turned, (f"Neg_{len(between) + 2}",)]


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        (("b", "c", "h", "w"), [0, 0, -1]),
        (("b", "t", 80), [0, -1, 320]),
        (("b", "n"), [0, 8, -1]),
        (("b", "n"), [-1, 16, 8]),
    ],
    ids=["joined", "frames", "split", "multiples"],
)
def test_a_reshape_of_any_size_is_a_view_whatever_tvm_sees_of_its_indices(
    shape: tuple[int | str, ...], wanted: list[int]
) -> None:
    """Quotients that only the run knows: the kernel took 4 ns an element."""
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("Transpose", ["r"], ["y"], perm=[0, 2, 1])]
    proto = dynamic_model(nodes, {"x": ("float32", shape)}, ["y"], {"shape": np.array(wanted)})
    dumps = CpuLowering().lower(job(import_model(proto, keep_dims=True))).dumps
    kernels = [text for name, text in dumps if name.endswith("kernels.py")]
    assert kernels and not any(name in text for name in ("T_reshape", "reshaped") for text in kernels)
