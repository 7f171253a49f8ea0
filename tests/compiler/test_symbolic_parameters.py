"""Scales, biases and weights that are inputs, each of its own symbolic size: the default devices run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, value
from tests.reference import reference_session

CASES: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "LayerNormalization": ({}, {"x": (2, 5), "s": (5,)}),
    "LayerNormalization of two axes": ({"axis": 1}, {"x": (2, 3, 4), "s": (3, 4), "b": (3, 4)}),
    "InstanceNormalization": ({}, {"x": (2, 3, 4), "s": (3,), "b": (3,)}),
    "BatchNormalization": ({}, {"x": (2, 3, 4), "s": (3,), "b": (3,), "m": (3,), "v": (3,)}),
    "Gemm": ({}, {"x": (3, 4), "w": (4, 5), "b": (5,)}),
    "Conv": ({}, {"x": (2, 3, 8, 8), "w": (4, 3, 3, 3), "b": (4,)}),
    "PRelu": ({}, {"x": (2, 3), "s": (3,)}),
    "MatMul": ({}, {"x": (2, 3), "w": (3, 5)}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_of_parameters_of_symbolic_sizes_compiles_by_default(tmp_path: Path, case: str) -> None:
    attributes, shapes = CASES[case]
    kernel = {2, 3} if case == "Conv" else set()
    inputs = [
        value(name, [n if name == "w" and d in kernel else f"{name}{d}" for d, n in enumerate(shape)])
        for name, shape in shapes.items()
    ]
    made = node(case.split()[0], " ".join(shapes), "y", **attributes)
    proto = model([made], inputs, [value("y")], opset=17)
    compile_model(proto, tmp_path / "m.hcb")
    feed = {name: np.abs(noise(*shape, seed=seed)) for seed, (name, shape) in enumerate(shapes.items())}
    with load(tmp_path / "m.hcb") as session:
        (right,) = reference_session(proto).run(None, feed)
        np.testing.assert_allclose(session.run(feed)["y"], right, rtol=1e-3, atol=1e-4)
