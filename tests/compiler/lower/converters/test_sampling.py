"""GridSample, compared with ONNX Runtime and, pixel by pixel, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.lower.cpu.test_symbolic import compare, compiled
from tests.compiler.lower.lowered import assert_same, model, run_cpu, run_ort
from tests.symbolic_models import dynamic_model

MIRRORED = {"padding_mode": "reflection", "align_corners": 1}


def places(*sizes: int) -> np.ndarray:
    """Coordinates inside and outside of an image."""
    return np.random.default_rng(1).uniform(-2.5, 2.5, (1, *sizes, len(sizes))).astype(np.float32)


def image(*sizes: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((1, 2, *sizes)).astype(np.float32)


@pytest.mark.parametrize(
    ("mode", "sizes"),
    [("cubic", (1, 7)), ("nearest", (1, 3, 1))],
)
def test_images_of_one_row_are_mirrored_at_the_centres_of_pixels(mode: str, sizes: tuple[int, ...]) -> None:
    feeds = {"x": image(*sizes), "grid": places(*(3,) * len(sizes))}
    made = model([helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, **MIRRORED)], feeds, ["y"], opset=20)
    assert_same(run_cpu(made, feeds), run_ort(made, feeds))


def test_images_of_any_size_may_have_one_row(tmp_path: Path) -> None:
    nodes = [helper.make_node("GridSample", ["x", "grid"], ["y"], mode="bicubic", **MIRRORED)]
    inputs = {"x": ("float32", (1, 2, "h", "w")), "grid": ("float32", (1, 3, 3, 2))}
    feeds = [{"x": image(*sizes), "grid": places(3, 3)} for sizes in ((4, 5), (1, 5), (5, 1), (1, 1))]
    compare(dynamic_model(nodes, inputs, ["y"], {}), tmp_path, feeds)


def test_a_coordinate_that_is_nan_leaves_the_other_samples_of_an_image_of_one_row(tmp_path: Path) -> None:
    nodes = [helper.make_node("GridSample", ["x", "grid"], ["y"], mode="bilinear", **MIRRORED)]
    inputs = {"x": ("float32", (1, 2, "h", 5)), "grid": ("float32", (1, 1, 3, 2))}
    run = compiled(dynamic_model(nodes, inputs, ["y"], {}), tmp_path)
    grid = places(1, 3)
    broken = grid.copy()
    broken[0, 0, 1] = np.nan
    (wanted,), (found,) = (run({"x": image(1, 5), "grid": g}) for g in (grid, broken))
    np.testing.assert_array_equal(found[..., [0, 2]], wanted[..., [0, 2]])


def sampled(x: np.ndarray, grid: np.ndarray, mode: str, padding: str, aligned: bool) -> np.ndarray:
    """GridSample pixel by pixel, in float64."""
    batch, channels, height, width = x.shape
    result = np.zeros((batch, channels, *grid.shape[1:3]))

    def pixel(n: int, row: int, column: int) -> np.ndarray | float:
        places = []
        for place, size in ((row, height), (column, width)):
            if padding == "zeros" and not 0 <= place < size:
                return 0.0
            mirrored = [*range(size), *(range(size - 2, 0, -1) if aligned else range(size - 1, -1, -1))]
            clamped = min(max(place, 0), size - 1)
            places.append(mirrored[place % len(mirrored)] if padding == "reflection" else clamped)
        return x[n, :, places[0], places[1]].astype(np.float64)

    for n, i, j in np.ndindex(batch, *grid.shape[1:3]):
        column, row = (
            (g + 1) / 2 * (size - 1) if aligned else ((g + 1) * size - 1) / 2
            for g, size in zip(grid[n, i, j].astype(np.float64), (width, height), strict=True)
        )
        if mode == "nearest":
            result[n, :, i, j] = pixel(n, int(np.rint(row)), int(np.rint(column)))
            continue
        top, left = int(np.floor(row)), int(np.floor(column))
        for down, right in itertools.product((0, 1), repeat=2):
            weight = abs(1 - down - (row - top)) * abs(1 - right - (column - left))
            result[n, :, i, j] += weight * pixel(n, top + down, left + right)
    return result


def check_samples(kinds: Iterable[tuple[str, str, int]]) -> None:
    rng = np.random.default_rng(2)
    sizes = (((2, 5, 7, 9), (2, 4, 5, 2)), ((1, 3, 1, 4), (1, 1, 3, 2)), ((1, 9, 6, 1), (1, 17, 3, 2)))
    nodes: list[onnx.NodeProto] = []
    feeds: dict[str, np.ndarray] = {}
    right: list[np.ndarray] = []
    for number, (mode, padding, aligned) in enumerate(kinds):
        image, places = sizes[number % len(sizes)]
        x = rng.standard_normal(image).astype(np.float32)
        grid = (rng.standard_normal(places) * 1.4).astype(np.float32)
        right.append(sampled(x, grid, mode, padding, bool(aligned)))
        names = [f"x{number}", f"grid{number}"]
        feeds |= dict(zip(names, (x, grid), strict=True))
        options = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
        nodes.append(helper.make_node("GridSample", names, [f"y{number}"], **options))
    found = run_cpu(model(nodes, feeds, [n.output[0] for n in nodes], opset=20), feeds)
    for result, expected in zip(found.values(), right, strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


def test_samples_of_images_agree() -> None:
    check_samples([("linear", "reflection", 1), ("nearest", "border", 0), ("linear", "zeros", 0)])


@pytest.mark.slow
def test_samples_of_images_agree_for_every_mode() -> None:
    check_samples(itertools.product(("linear", "nearest"), ("zeros", "border", "reflection"), (0, 1)))


def test_pixels_outside_the_image_count_nothing_even_beside_infinity_and_for_any_coordinate() -> None:
    feeds = {"x": np.full((1, 1, 2, 2), np.inf, np.float32)}
    feeds["grid"] = np.array([[[[-1, 0], [9, 9], [1e30, 0], [-np.inf, np.nan]]]], np.float32)
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], padding_mode="zeros")
    found = run_cpu(model([node], feeds, ["y"], opset=20), feeds)
    np.testing.assert_array_equal(found["y"], [[[[np.inf, 0, 0, 0]]]])


def test_samples_of_images_of_any_size_agree_and_pixels_outside_count_nothing(tmp_path: Path) -> None:
    kinds = [("linear", "reflection", 1), ("linear", "zeros", 0)]
    nodes = [
        helper.make_node("GridSample", ["x", "grid"], [f"y{n}"], mode=mode, padding_mode=padding, align_corners=aligned)
        for n, (mode, padding, aligned) in enumerate(kinds)
    ]
    inputs = {"x": ("float32", ("b", 2, "h", "w")), "grid": ("float32", ("b", "i", "j", 2))}
    run = compiled(dynamic_model(nodes, inputs, ["y0", "y1"], {}, opset=20), tmp_path)
    rng = np.random.default_rng(2)
    for batch, height, width, rows, columns in ((2, 7, 9, 4, 5), (1, 1, 4, 1, 3), (3, 6, 1, 17, 3)):
        x = rng.standard_normal((batch, 2, height, width)).astype(np.float32)
        grid = (rng.standard_normal((batch, rows, columns, 2)) * 1.4).astype(np.float32)
        for found, (mode, padding, aligned) in zip(run({"x": x, "grid": grid}), kinds, strict=True):
            np.testing.assert_allclose(found, sampled(x, grid, mode, padding, bool(aligned)), rtol=0, atol=1e-5)
    feeds = {"x": np.full((1, 2, 2, 2), np.inf, np.float32)}
    feeds["grid"] = np.array([[[[-1, 0], [9, 9], [1e30, 0], [-np.inf, np.nan]]]], np.float32)
    np.testing.assert_array_equal(run(feeds)[1][0, 0], [[np.inf, 0, 0, 0]])
