"""Tile of dynamic dimensions."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.symbolic_models import dynamic_model


@pytest.mark.parametrize("repeats", [(2, 1, 1), (1, 3, 1), (1, 1, 4), (2, 3, 2), (1, 1, 1), (1, 0, 2)])
def test_dynamic_dimensions_are_repeated(repeats: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [helper.make_node("Tile", ["x", "repeats"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = dynamic_model(nodes, {"x": ("float32", ("n", 3, "length"))}, ["y"], {"repeats": np.array(repeats)})
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    rng = np.random.default_rng(0)
    with load(tmp_path / "m.hcb") as session:
        for shape in [(1, 3, 1), (2, 3, 5), (3, 3, 40)]:
            x = rng.standard_normal(shape).astype(np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(np.tile(x, repeats), 0))


def test_many_dynamic_dimensions_are_repeated_by_code_that_compiles_in_seconds(tmp_path: Path) -> None:
    repeats = (2, 3, 2, 2)
    nodes = [helper.make_node("Tile", ["x", "repeats"], ["y"])]
    model = dynamic_model(nodes, {"x": ("float32", ("a", "b", "c", "d"))}, ["y"], {"repeats": np.array(repeats)})
    start = time.process_time()
    compile_model(model, tmp_path / "m.hcb", devices="CPU", check=False)
    assert time.process_time() - start < 20  # one kernel of eight loops took 70 seconds
    with load(tmp_path / "m.hcb") as session:
        x = np.random.default_rng(0).standard_normal((3, 2, 4, 5)).astype(np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.tile(x, repeats))


@pytest.mark.parametrize(
    ("shape", "repeats"),
    [(("n", 70), (3, 1)), (("n", 70), (1, 3)), (("n", 1030), (2, 3)), (("n", 5), (2, 3)), ((1, "n", 1), (4, 1, 3))],
)
def test_rows_of_any_length_are_repeated(
    shape: tuple[int | str, ...], repeats: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [helper.make_node("Tile", ["x", "repeats"], ["y"])]
    model = dynamic_model(nodes, {"x": ("float32", shape)}, ["y"], {"repeats": np.array(repeats)})
    compile_model(model, tmp_path / "m.hcb", devices="CPU", check=False)
    with load(tmp_path / "m.hcb", threads=1) as session:
        for size in (1, 3, 2048 if 70 in shape else 40):
            x = np.random.default_rng(0).standard_normal([size if n == "n" else n for n in shape]).astype(np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.tile(x, repeats))
