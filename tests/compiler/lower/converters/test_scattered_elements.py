"""ScatterElements and GatherElements with indices that have fewer rows than the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.symbolic_models import dynamic_model


def _scattered(data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int) -> np.ndarray:
    result = data.copy()
    for place in np.ndindex(*indices.shape):
        result[(*place[:axis], indices[place], *place[axis + 1 :])] += updates[place]
    return result


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_of_indices_are_those_of_the_data(axis: int, tmp_path: Path) -> None:
    inputs = {
        "x": ("float32", ("a", "b", "c")),
        "i": ("int64", ("d", "e", "f")),
        "u": ("float32", ("d", "e", "f")),
    }
    nodes = [helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], axis=axis, reduction="add")]
    model = dynamic_model(nodes, inputs, ["y"], {})
    model.opset_import[0].version = 18
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    rng = np.random.default_rng(axis)
    with load(tmp_path / "m.hcb") as session:
        for shape, read in [
            ((2, 3, 4), (2, 3, 4)),
            ((2, 6, 4), (2, 3, 1)),
            ((4, 6, 5), (3, 2, 4)),
            ((3, 3, 3), (1, 1, 1)),
        ]:
            x, u = (rng.integers(-9, 9, size).astype(np.float32) for size in (shape, read))
            i = rng.integers(-shape[axis], shape[axis], read)
            np.testing.assert_array_equal(session.run({"x": x, "i": i, "u": u})["y"], _scattered(x, i, u, axis))
