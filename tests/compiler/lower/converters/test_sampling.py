"""GridSample, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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
