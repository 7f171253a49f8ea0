"""`--fast-math`: another form of 3 x 3 convolutions, only where it is asked for, with results within the check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import LARGE
from heterocc.runtime import load
from tests.compiler.small import save

RNG = np.random.default_rng(31)
SIDE = 56


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = {f"w{i}": (RNG.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32) for i in range(2)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        helper.make_node("Conv", ["a", "w1"], ["y"], pads=[1] * 4),
    ]
    shape = (1, 64, SIDE, SIDE)
    return save(tmp_path_factory.mktemp("m") / "m.onnx", nodes, {"x": shape}, {"y": shape}, weights)


def uses_large_tiles(bundle: Path) -> bool:
    """Whether weights are transformed for them when the bundle is loaded; they are too large to be stored so."""
    with open_bundle(bundle) as opened:
        layouts = [x for v in opened.manifest.variants for p in v.partitions for x in p.layouts.values()]
        return any(layout.matrix is not None and len(layout.matrix) == LARGE.inputs for layout in layouts)


def test_large_tiles_are_used_only_where_they_are_asked_for(model: Path, tmp_path: Path) -> None:
    ways = {
        "usual": {},
        "all": {"fast_math": True},
        "one": {"properties": "CPU.fast_math=on"},
        "not": {"fast_math": True, "properties": "CPU.fast_math=off"},
    }
    for name, options in ways.items():
        compile_model(model, tmp_path / f"{name}.hcb", devices="CPU", **options)
    found = {name: uses_large_tiles(tmp_path / f"{name}.hcb") for name in ways}
    assert found == {"usual": False, "all": True, "one": True, "not": False}
    x = RNG.standard_normal((1, 64, SIDE, SIDE)).astype(np.float32)
    with load(tmp_path / "usual.hcb") as usual, load(tmp_path / "all.hcb") as fast:
        right, near = usual.run({"x": x})["y"], fast.run({"x": x})["y"]
    assert 0 < np.linalg.norm(near - right) < 5e-6 * np.linalg.norm(right)
