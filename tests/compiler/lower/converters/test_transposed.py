"""Transposed convolutions against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.lower.cpu.lowering import CpuLowering
from tests.compiler.lower.lowered import execute, job, model, run_ort

CASES: list[tuple[tuple[int, int], tuple[int, int], int, dict[str, Any]]] = [
    ((5, 7), (3, 5), 8, {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [0, 2]}),
    ((4, 4), (3, 3), 8, {"strides": [2, 2], "group": 2}),
    ((6, 3), (5, 3), 9, {"strides": [2, 1], "pads": [4, 2, 1, 0], "output_padding": [1, 0]}),
    ((3, 4), (4, 4), 8, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((4, 3), (6, 4), 8, {"strides": [3, 2], "pads": [1, 2, 2, 0]}),
    ((9, 21), (3, 3), 8, {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((6, 40), (5, 5), 70, {"strides": [2, 2], "pads": [2, 2, 2, 2]}),
    ((5, 9), (7, 3), 8, {"strides": [3, 2], "auto_pad": "SAME_UPPER"}),
    ((4, 6), (5, 5), 8, {"strides": [2, 4], "output_padding": [1, 3], "group": 3}),
    ((6, 9), (3, 4), 2, {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
]


@pytest.mark.parametrize(("sizes", "taps", "channels", "attributes"), CASES)
def test_transposed_convolutions_without_zeros_agree_with_onnx_runtime(
    sizes: tuple[int, int], taps: tuple[int, int], channels: int, attributes: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 6, *sizes)).astype(np.float32)
    weights = {
        "w": rng.standard_normal((6, channels, *taps)).astype(np.float32),
        "b": rng.standard_normal(channels * attributes.get("group", 1)).astype(np.float32),
    }
    made = model([helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)], {"x": x}, ["y"], weights)
    work = job(made)
    lowered = CpuLowering().lower(work)
    np.testing.assert_allclose(execute(work, lowered, {"x": x})["y"], run_ort(made, {"x": x})["y"], atol=2e-5)
    assert sum(a.size for a in lowered.params) <= sum(a.size for a in weights.values()), "weights of zero"


def test_products_are_added_where_they_overlap_unless_filtering_saves_some() -> None:
    def kernels(size: int, taps: int, channels: int) -> int:
        x, w = np.zeros((1, channels, size, size), np.float32), np.zeros((channels, channels, taps, taps), np.float32)
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)
        return len(CpuLowering().lower(job(model([node], {"x": x}, ["y"], {"w": w}))).kernels)

    assert kernels(3, 4, 8) == kernels(30, 4, 8) == kernels(30, 3, 8) == kernels(30, 5, 8) == 2
    assert kernels(30, 5, 64) > 2


SPARSE: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((5, 7), (3, 3), {"dilations": [2, 1], "pads": [5, 2, 0, 2], "group": 3}),
    ((4, 6), (3, 2), {"dilations": [2, 3], "strides": [2, 3], "pads": [1, 2, 0, 1], "output_padding": [1, 1]}),
    ((6,), (2,), {"dilations": [3], "strides": [2], "auto_pad": "SAME_UPPER"}),
    ((4, 5), (2, 3), {"strides": [4, 5], "output_padding": [1, 3]}),
    ((1, 1), (4, 5), {"pads": [1, 0, 0, 2], "strides": [2, 3]}),
    ((1, 1), (3, 3), {"output_padding": [1, 0], "strides": [2, 2]}),
]


@pytest.mark.parametrize(("sizes", "taps", "attributes"), SPARSE, ids=str)
def test_dilations_large_strides_and_single_inputs_agree_with_onnx_runtime(
    sizes: tuple[int, ...], taps: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    rng, groups = np.random.default_rng(0), attributes.get("group", 1)
    x = rng.standard_normal((2, 6, *sizes)).astype(np.float32)
    weights = {
        "w": rng.standard_normal((6, 3, *taps)).astype(np.float32),
        "b": rng.standard_normal(3 * groups).astype(np.float32),
    }
    made = model([helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)], {"x": x}, ["y"], weights)
    work = job(made)
    found = execute(work, CpuLowering().lower(work), {"x": x})["y"]
    np.testing.assert_allclose(found, run_ort(made, {"x": x})["y"], atol=2e-5)


STRIDES_OF_ONE: list[tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any], bool]] = [
    ((12, 20), (3, 3), 24, {"dilations": [2, 2]}, True),
    ((12, 9), (3, 2), 9, {"dilations": [3, 1], "group": 2}, True),
    ((21, 8), (4, 4), 8, {"dilations": [1, 2], "pads": [1, 0, 0, 2], "output_padding": [0, 0]}, True),
    ((7, 10), (5, 3), 5, {"pads": [0, 0, 1, 0]}, True),
    ((19,), (6,), 10, {"dilations": [4]}, True),
    ((12, 20), (3, 3), 48, {"dilations": [2, 2]}, False),
    ((30, 30), (3, 3), 8, {"pads": [1, 1, 1, 1]}, False),
]


@pytest.mark.parametrize(("sizes", "taps", "channels", "attributes", "overlapped"), STRIDES_OF_ONE, ids=str)
def test_products_of_strides_of_one_overlap_where_outputs_exceed_inputs(
    sizes: tuple[int, ...], taps: tuple[int, ...], channels: int, attributes: dict[str, Any], overlapped: bool
) -> None:
    rng, groups = np.random.default_rng(0), attributes.get("group", 1)
    x = rng.standard_normal((2, 20 * groups, *sizes)).astype(np.float32)
    weights = {
        "w": rng.standard_normal((20 * groups, channels, *taps)).astype(np.float32),
        "b": rng.standard_normal(channels * groups).astype(np.float32),
    }
    made = model([helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)], {"x": x}, ["y"], weights)
    work = job(made)
    lowered = CpuLowering().lower(work)
    np.testing.assert_allclose(execute(work, lowered, {"x": x})["y"], run_ort(made, {"x": x})["y"], atol=5e-5)
    assert len(lowered.kernels) == (2 if overlapped else 1)
