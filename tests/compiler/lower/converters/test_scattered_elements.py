"""ScatterElements and GatherElements with indices that have fewer rows than the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.relax.importer import import_function
from heterocc.runtime import load
from tests.compiler.lower import lowered
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


def _by_rows(operator: str, *inputs: str, **attributes: object) -> onnx.ModelProto:
    """An operator whose indices are a vector that is expanded to the shape of the updates."""
    nodes = [
        helper.make_node("Unsqueeze", ["i", "axes"], ["column"]),
        helper.make_node("Shape", ["u"], ["shape"]),
        helper.make_node("Expand", ["column", "shape"], ["wide"]),
        helper.make_node(operator, [*inputs], ["y"], axis=0, **attributes),
    ]
    given = {"x": ("float32", ("n", 5, 3)), "i": ("int64", ("e",)), "u": ("float32", ("e", 5, 3))}
    model = dynamic_model(nodes, given, ["y"], {"axes": np.array([1, 2])})
    model.opset_import[0].version = 18
    return model


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_an_index_for_each_row_scatters_rows(reduction: str, tmp_path: Path) -> None:
    model = _by_rows("ScatterElements", "x", "wide", "u", reduction=reduction)
    converted = import_function(lowered.job(import_model(model, keep_dims=True))).mod.script()
    assert "scatter_nd" in converted
    assert "scatter_elements" not in converted
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    rng = np.random.default_rng(0)
    with load(tmp_path / "m.hcb") as session:
        for rows, count in [(4, 3), (1, 1), (6, 2), (7, 7)]:
            x, u = (rng.integers(-9, 9, (size, 5, 3)).astype(np.float32) for size in (rows, count))
            i = rng.permutation(rows)[:count] - rows * rng.integers(0, 2, count)
            if reduction != "none":
                i[0] = i[-1]
            expected = x.copy()
            combine = {"none": lambda _, new: new, "add": np.add, "max": np.maximum}[reduction]
            for place, row in zip(i, u, strict=True):
                expected[place] = combine(expected[place], row)
            np.testing.assert_array_equal(session.run({"x": x, "i": i, "u": u})["y"], expected)
        with pytest.raises(HeteroccError, match="index is out of range"):
            session.run({"x": x, "i": np.full(7, 7), "u": u})


def test_an_index_for_each_row_gathers_rows(tmp_path: Path) -> None:
    model = _by_rows("GatherElements", "x", "wide")
    assert "gather_elements" not in import_function(lowered.job(import_model(model, keep_dims=True))).mod.script()
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((6, 5, 3)).astype(np.float32), np.zeros((8, 5, 3), np.float32)
    i = rng.integers(-6, 6, 8)
    with load(tmp_path / "m.hcb") as session:
        np.testing.assert_array_equal(session.run({"x": x, "i": i, "u": u})["y"], x[i])
