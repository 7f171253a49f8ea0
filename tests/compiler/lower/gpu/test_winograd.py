"""Winograd's filtering: matrices, conditions of use, and results on each kind of device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler.lower.gpu.contraction import winograd
from heterocc.compiler.lower.gpu.contraction.filtering import F2, F4, Filtering, Transformed
from heterocc.compiler.lower.gpu.packed import LanesLast
from tests.compiler.lower.gpu.test_shared_tiles import conv, each_api, hardware, one_api
from tests.compiler.lower.gpu_run import Graph, Runner, node

RNG = np.random.default_rng(3)

each_filtering = pytest.mark.parametrize("filtering", [F2, F4], ids=["F2", "F4"])


def by_tiles(filtering: Filtering, image: np.ndarray, weight: np.ndarray, dtype: type = np.float64) -> np.ndarray:
    """One tile of outputs [out, m, m] for one tile of inputs [in, m + 2, m + 2]."""
    inputs, outputs = np.array(filtering.inputs, dtype), np.array(filtering.outputs, dtype)
    planes = Transformed(filtering, None).apply(weight).reshape(filtering.side, filtering.side, *weight.shape[:2])
    transformed = np.einsum("ki,cij,lj->klc", inputs, image, inputs)
    return np.einsum("ik,kloc,klc,jl->oij", outputs, planes, transformed, outputs)


@each_filtering
def test_filtering_gives_the_convolution(filtering: Filtering) -> None:
    image, weight = RNG.standard_normal((5, filtering.side, filtering.side)), RNG.standard_normal((7, 5, 3, 3))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))
    assert np.allclose(by_tiles(filtering, image, weight), np.einsum("cyxij,ocij->oyx", windows, weight), atol=1e-12)


def test_transformed_weights_then_get_the_layout_of_the_product() -> None:
    weight = RNG.standard_normal((20, 6, 3, 3), dtype=np.float32)
    assert Transformed(F2, None).apply(weight).shape == (16, 20, 6)
    assert Transformed(F4, LanesLast(1, 16)).apply(weight).shape == (2, 36, 6, 16)
    assert Transformed(F4, None).apply(weight).dtype == np.float32


def scheduled(dumps: Iterable[tuple[str, str]]) -> bool:
    return '"heterocc.rule": "winograd"' in dict(dumps)["scheduled.py"]


GRAPHS = {
    "even": conv((1, 32, 24, 24), (48, 32, 3, 3), "Relu", pads=[1, 1, 1, 1]),
    "odd": conv((1, 33, 27, 17), (35, 33, 3, 3), pads=[1, 1, 1, 1]),
    "batch": conv((2, 32, 13, 14), (40, 32, 3, 3), "Sigmoid"),
    "lopsided": conv((1, 32, 21, 22), (32, 32, 3, 3), "Relu", pads=[2, 0, 1, 1]),
    "bare": Graph(
        {"x": RNG.standard_normal((1, 32, 20, 20), dtype=np.float32)},
        [node("Conv", "x", "w", pads=[1, 1, 1, 1])],
        {"w": RNG.standard_normal((32, 32, 3, 3), dtype=np.float32) / 8},
    ),
}


@each_api
@pytest.mark.parametrize(
    ("name", "filtering"),
    [
        pytest.param(name, filtering, id=f"{name}-{label}", marks=[pytest.mark.slow] if (at + shift) % 2 else [])
        for at, name in enumerate(GRAPHS)
        for shift, (label, filtering) in enumerate((("F2", F2), ("F4", F4)))
    ],
)
def test_filtered_convolutions_match_onnx_runtime(
    api: Runner, name: str, filtering: Filtering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "choose_filtering", lambda *_: filtering)
    lowered = api.check(GRAPHS[name], tmp_path, tolerance=3e-5)
    assert scheduled(lowered.dumps)


@each_api
def test_filtering_works_with_tiles_in_shared_memory(api: Runner, tmp_path: Path) -> None:
    device = hardware(api.first_device())
    assert scheduled(api.check(GRAPHS["batch"], tmp_path, tolerance=3e-5, device=device).dumps)
    few = dataclasses.replace(device, target={**device.target, "max_num_threads": 16})
    assert scheduled(api.check(GRAPHS["odd"], tmp_path, tolerance=3e-5, device=few).dumps)


@one_api
@pytest.mark.parametrize(
    "graph",
    [
        conv((1, 32, 24, 24), (32, 32, 3, 3), strides=[2, 2]),
        conv((1, 32, 24, 24), (32, 32, 3, 3), dilations=[2, 2]),
        conv((1, 64, 24, 24), (64, 32, 3, 3), group=2),
        conv((1, 32, 24, 24), (32, 32, 3, 1)),
        conv((1, 8, 24, 24), (32, 8, 3, 3)),
        conv((1, 32, 4, 3), (32, 32, 3, 3)),
    ],
    ids=["strided", "dilated", "grouped", "line", "few channels", "few pixels"],
)
def test_other_convolutions_are_not_filtered(api: Runner, graph: Graph, tmp_path: Path) -> None:
    assert not scheduled(api.check(graph, tmp_path).dumps)


@each_api
def test_weights_that_are_read_elsewhere_are_not_transformed(api: Runner, tmp_path: Path) -> None:
    graph = GRAPHS["bare"]
    shared = dataclasses.replace(graph, nodes=[*graph.nodes, node("Conv", "x", "w", strides=[2, 2])])
    assert not scheduled(api.check(shared, tmp_path).dumps)


@each_filtering
def test_filtering_is_about_as_exact_as_a_plain_sum(filtering: Filtering) -> None:
    image, weight = RNG.standard_normal((64, filtering.side, filtering.side)), RNG.standard_normal((200, 64, 3, 3))
    exact = by_tiles(filtering, image, weight)
    image, weight = image.astype(np.float32), weight.astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))
    plain = np.zeros_like(exact, np.float32)
    for c, i, j in np.ndindex(64, 3, 3):
        plain += windows[c, :, :, i, j] * weight[:, c, i, j, None, None]
    error = np.abs(by_tiles(filtering, image, weight, np.float32) - exact).max()
    assert error < 3 * np.abs(plain - exact).max()
