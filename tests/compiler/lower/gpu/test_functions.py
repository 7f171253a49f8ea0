from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.lower.gpu_places import PLACES, outputs, wrong
from tests.compiler.lower.gpu_run import Graph, node

RNG = np.random.default_rng(17)


@pytest.mark.parametrize("place", PLACES)
def test_the_error_function_is_right_everywhere(place: str, tmp_path: Path) -> None:
    size = np.concatenate([np.linspace(0, 7, 3001), np.logspace(-30, 0, 400)])
    x = np.concatenate([size, -size, [np.inf, -np.inf, np.nan]]).astype(np.float32)
    (found,), _ = outputs(Graph({"x": x}, [node("Erf", "x")]), place, tmp_path)
    exact = np.array([math.erf(float(v)) for v in x])
    assert np.isnan(found[-1])
    ulps = np.abs(found[:-1] - exact[:-1]) / np.spacing(np.abs(exact[:-1]).astype(np.float32))
    assert ulps.max() <= (16 if place == "opencl-as-gpu" else 8)


@pytest.mark.parametrize("place", PLACES)
def test_functions_after_a_product_are_right(place: str, tmp_path: Path) -> None:
    x, weight = RNG.standard_normal((2, 24, 32), np.float32), RNG.standard_normal((32, 48), np.float32) / 6
    graph = Graph(
        {"x": x},
        [
            node("MatMul", "x", "w", outputs=["m"]),
            node("Erf", "m", outputs=["e"]),
            node("Add", "e", "one", outputs=["f"]),
            node("Mul", "m", "f"),
        ],
        {"w": weight, "one": np.float32(1)},
    )
    product = x.astype(np.float64) @ weight.astype(np.float64)
    found, _ = outputs(graph, place, tmp_path)
    assert wrong(found, [product * (np.vectorize(math.erf)(product) + 1)], 3e-6) == []
