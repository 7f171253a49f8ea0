"""Transposed convolutions against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from tests.compiler.lower.lowered import CPU, execute, job, model, run_cpu, run_ort

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
    # Columns are filled up to whole vectors, a quarter at most.
    assert sum(a.size for a in lowered.params) <= 1.3 * sum(a.size for a in weights.values()), "weights of zero"


def test_outputs_of_separate_convolutions_are_put_together_from_one_array() -> None:
    """A choice among four arrays would change within vectors."""
    weights = {"w": np.ones((6, 8, 3, 3), np.float32)}
    x = np.ones((1, 6, 9, 12), np.float32)
    made = model([helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])], {"x": x}, ["y"], weights)
    module = kernel_module(job(made), cpu_target(CPU))
    reads = [len(function.params) - 1 for name, function in module.mod.functions_items() if name.name_hint != "main"]
    assert sorted(reads) == [1, 2, 2, 2, 2, 4]  # outputs in turn, a convolution and its weight each, one array of four


SPARSE: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((6, 9), (3, 4), {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
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


OVERLAPS: Sequence[tuple[tuple[int, ...], tuple[int, ...], dict[str, list[int]]]] = (
    ((9, 35), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((7, 16), (5, 4), {"strides": [3, 2], "pads": [0, 1, 2, 0]}),
    ((4, 5), (2, 3), {}),
    ((6, 70), (3, 2), {"dilations": [2, 3], "strides": [1, 2], "pads": [2, 1, 0, 3]}),
    ((3, 19), (7, 11), {"strides": [3, 5], "pads": [3, 5, 2, 4]}),
    ((2, 33), (1, 2), {"strides": [2, 4]}),
    ((50,), (6,), {"strides": [3], "pads": [2, 1]}),
    ((17,), (4,), {"dilations": [5], "strides": [4], "pads": [9, 0]}),
    ((1, 1), (3, 2), {"strides": [2, 2], "pads": [1, 0, 0, 0]}),
    ((5, 18), (33, 32), {"strides": [16, 16], "pads": [9, 8, 8, 8]}),
    ((9,), (40,), {"dilations": [6], "strides": [9]}),
)


def added(columns: np.ndarray, counts: Sequence[int], taps: Sequence[int], **attributes: list[int]) -> np.ndarray:
    """The sums of the columns' elements at each place of an image, in float64."""
    rank = len(taps)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * rank)
    lengths = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(counts, strides, taps, dilations, strict=True)]
    batch, rows, _ = columns.shape
    split = columns.reshape(batch, rows // int(np.prod(taps)), *taps, *counts).astype(np.float64)
    whole = np.zeros((*split.shape[:2], *lengths))
    for tap in np.ndindex(*taps):
        starts = [t * d for t, d in zip(tap, dilations, strict=True)]
        there = tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, counts, strides, strict=True))
        whole[(..., *there)] += split[(slice(None), slice(None), *tap)]
    ends = [n - p for n, p in zip(lengths, pads[rank:], strict=True)]
    return whole[(..., *(slice(b, e) for b, e in zip(pads[:rank], ends, strict=True)))]


def test_columns_that_overlap_are_added() -> None:
    rng = np.random.default_rng(0)
    given, constants, nodes, images = {}, {}, [], {}
    for n, (counts, taps, attributes) in enumerate(OVERLAPS):
        columns = rng.standard_normal((2, 3 * int(np.prod(taps)), int(np.prod(counts)))).astype(np.float32)
        given[f"x{n}"], images[f"y{n}"] = columns, added(columns, counts, taps, **attributes)
        constants |= {f"image{n}": np.array(images[f"y{n}"].shape[2:]), f"block{n}": np.array(taps)}
        nodes.append(helper.make_node("Col2Im", [f"x{n}", f"image{n}", f"block{n}"], [f"y{n}"], **attributes))
    found = run_cpu(model(nodes, given, list(images), constants), given)
    for name, image in images.items():
        np.testing.assert_allclose(found[name], image, rtol=0, atol=1e-5, err_msg=name)
