from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from heterocc.artifacts.dtypes import NUMERIC_DTYPES
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.window.depthwise import schedule_windows
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower import vulkan_run
from tests.compiler.lower.gpu_places import PLACES, outputs, wrong
from tests.compiler.lower.gpu_run import Graph, node

RNG = np.random.default_rng(13)
NO_VULKAN = vulkan_unavailable_reason()


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def windows(
    x: np.ndarray, kernel: tuple[int, int], strides: Any, pads: Any, dilations: Any, border: float
) -> np.ndarray:
    """The elements of all windows in float64: taps × batch × channel × row × column."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=border)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [(n - span) // s + 1 for n, span, s in zip(padded.shape[2:], spans, strides, strict=True)]
    return np.stack(
        [
            padded[
                :,
                :,
                y * dilations[0] : y * dilations[0] + (sizes[0] - 1) * strides[0] + 1 : strides[0],
                x_ * dilations[1] : x_ * dilations[1] + (sizes[1] - 1) * strides[1] + 1 : strides[1],
            ]
            for y, x_ in product(range(kernel[0]), range(kernel[1]))
        ]
    )


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 6, 13, 13), (6, 1, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 5, 17, 32), (5, 1, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 3, 9, 11), (6, 1, 5, 3), {"pads": [2, 0, 1, 3]}),  # two outputs a channel, uneven borders
    ((1, 4, 12, 150), (4, 1, 3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),  # rows of more than 128
    ((1, 4, 8, 6), (4, 1, 3, 2), {"strides": [1, 3]}),  # no border
    ((1, 7, 1, 19), (7, 1, 1, 5), {"pads": [0, 2, 0, 2]}),  # planes of one row
]


@pytest.mark.parametrize("place", PLACES)
def test_depthwise_convolutions_with_what_follows_are_right(place: str, tmp_path: Path) -> None:
    inputs, constants, nodes, expected = {}, {}, [], []
    for i, (shape, weight, attributes) in enumerate(CONVOLUTIONS):
        inputs[f"x{i}"] = normal(*shape)
        constants |= {f"w{i}": normal(*weight), f"b{i}": normal(weight[0])}
        nodes.append(node("Conv", f"x{i}", f"w{i}", f"b{i}", outputs=[f"c{i}"], group=shape[1], **attributes))
        nodes.append(node("HardSwish" if i % 2 else "Relu", f"c{i}"))
        setting = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1]} | attributes
        taps = windows(inputs[f"x{i}"], weight[2:], **setting, border=0)
        taps = np.repeat(taps, weight[0] // shape[1], axis=2)
        factors = constants[f"w{i}"].astype(np.float64).reshape(weight[0], -1).T[:, None, :, None, None]
        sums = (taps * factors).sum(0) + constants[f"b{i}"][None, :, None, None]
        expected.append(sums * np.clip(sums / 6 + 0.5, 0, 1) if i % 2 else np.maximum(sums, 0))
    found, rules = outputs(Graph(inputs, nodes, constants), place, tmp_path)
    assert wrong(found, expected, 2e-6) == []
    assert rules <= {"windows", "register tile"}  # the latter may take the one with two outputs a channel


@pytest.mark.parametrize("place", PLACES)
def test_pools_are_right_and_borders_add_nothing(place: str, tmp_path: Path) -> None:
    x = normal(2, 3, 11, 18)
    x[0, 0, 0] = -np.inf
    x[1, 2, :, 17] = -np.inf
    finite = normal(1, 4, 10, 15)
    graph = Graph(
        {"x": x, "finite": finite},
        [
            node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("MaxPool", "x", kernel_shape=[2, 3], pads=[0, 1, 1, 1]),
            node("AveragePool", "finite", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("AveragePool", "finite", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], count_include_pad=1),
            node("AveragePool", "finite", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        ],
    )
    one = np.ones_like(finite)
    same = {"strides": [1, 1], "dilations": [1, 1]}
    apart = {"strides": [2, 2], "dilations": [1, 1]}
    expected = [
        windows(x, (3, 3), **apart, pads=[1, 1, 1, 1], border=-np.inf).max(0),
        windows(x, (2, 3), **same, pads=[0, 1, 1, 1], border=-np.inf).max(0),
        *(
            windows(finite, kernel, **form, pads=pads, border=0).sum(0)
            / (windows(one, kernel, **form, pads=pads, border=0).sum(0) if counted is None else counted)
            for kernel, form, pads, counted in (
                ((3, 3), same, [1, 1, 1, 1], None),
                ((3, 2), apart, [1, 0, 1, 1], 6),
                ((2, 2), apart, [0, 0, 0, 1], None),
            )
        ),
    ]
    found, rules = outputs(graph, place, tmp_path)
    assert wrong(found, expected, 2e-6) == []
    assert "windows" in rules


@pytest.mark.parametrize("place", PLACES)
def test_pools_of_other_types_and_ranks_are_right(place: str, tmp_path: Path) -> None:
    small = RNG.integers(-9, 9, (1, 2, 7, 7))
    solid, line = normal(1, 2, 5, 6, 7), normal(1, 3, 21)
    graph = Graph(
        {"small": small.astype(np.int8), "double": small.astype(np.float64), "solid": solid, "line": line},
        [
            node("MaxPool", "small", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("MaxPool", "double", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("MaxPool", "solid", kernel_shape=[2, 2, 2]),
            node("Conv", "line", "w", group=3, pads=[1, 1]),
        ],
        {"w": normal(3, 1, 3)},
    )
    largest = windows(small, (3, 3), [1, 1], [1, 1, 1, 1], [1, 1], -np.inf).max(0)
    deep = np.stack([solid[:, :, z : z + 4, y : y + 5, x : x + 6] for z, y, x in product((0, 1), repeat=3)]).max(0)
    padded = np.pad(line.astype(np.float64), ((0, 0), (0, 0), (1, 1)))
    weight = graph.constants["w"].astype(np.float64)
    along = sum(padded[:, :, k : k + 21] * weight[:, 0, k][None, :, None] for k in range(3))
    found, _ = outputs(graph, place, tmp_path)
    assert wrong(found, [largest, largest, deep, along], 2e-6) == []


def pooled(shape: tuple[int, int, int], dtype: str = "float32") -> Any:
    """The maxima of 3 × 3 windows inside planes, less one."""
    x = te.placeholder(shape, dtype, "x")
    y, z = te.reduce_axis((0, 3), "y"), te.reduce_axis((0, 3), "z")
    inside = (shape[0], shape[1] - 2, shape[2] - 2)
    most = te.compute(inside, lambda c, i, j: te.max(x[c, i + y, j + z], axis=[y, z]), "most")
    return te.create_prim_func([x, te.compute(inside, lambda c, i, j: most[c, i, j] - tirx.const(1, dtype), "less")])


@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan device: {NO_VULKAN}")
@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_small_groups_and_a_short_grid_give_the_same_maxima(software: bool, dtype: str) -> None:
    x = normal(5, 31, 29).astype(dtype)
    limits = Limits(8, False, NUMERIC_DTYPES, grid=7, software=software)
    packed = schedule_windows(pooled(x.shape, dtype), limits)
    assert packed is not None
    vulkan_run.assert_valid(vulkan_run.kernels_of(packed.function))
    found = vulkan_run.call(packed.function, [x], np.zeros((5, 29, 27), dtype))
    expected = windows(x[None], (3, 3), [1, 1], [0] * 4, [1, 1], 0).max(0)[0] - 1
    assert wrong([found], [expected], 1e-6 if dtype == "float32" else 1e-3) == []


def test_what_slides_no_window_is_left_to_other_rules() -> None:
    x = te.placeholder((4, 30, 30), "float32", "x")
    k = te.reduce_axis((0, 30), "k")
    limits = Limits(64, False, NUMERIC_DTYPES)
    total = te.compute((4, 30), lambda c, i: te.sum(x[c, i, k], axis=k), "total")
    assert schedule_windows(te.create_prim_func([x, total]), limits) is None
    wide = te.reduce_axis((0, 13), "y"), te.reduce_axis((0, 13), "z")
    large = te.compute((4, 18, 18), lambda c, i, j: te.sum(x[c, i + wide[0], j + wide[1]], axis=wide), "large")
    assert schedule_windows(te.create_prim_func([x, large]), limits) is None
