"""NaN and numbers beyond float32 in recurrent layers (decision 7)."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler import compile_model, verify_bundle
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, save, value


def test_nan_comes_through_the_relu_of_a_layer(tmp_path: Path) -> None:
    weights = {"w": noise(1, 4, 3), "r": noise(1, 4, 4, seed=1)}
    layer = node("RNN", "x w r", "y", hidden_size=4, activations=["Relu"])
    made = model([layer], [value("x", [3, 1, 3])], [value("y", [3, 1, 1, 4])], weights)
    x = noise(3, 1, 3)
    x[1, 0, 0] = np.nan
    compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        assert np.isnan(session.run({"x": x})["y"]).all(axis=(1, 2, 3)).tolist() == [False, True, True]


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_a_layer_whose_numbers_overflow_compiles_and_computes_the_definition(
    tmp_path: Path, kind: str, gates: int
) -> None:
    """ONNX Runtime bounds sums at the largest float32, and takes NaN for it."""
    weights = {"w": noise(1, 4 * gates, 3), "r": 3 * noise(1, 4 * gates, 4, seed=1), "b": noise(1, 8 * gates, seed=2)}
    relu = ["Relu"] * (3 if kind == "LSTM" else 2)
    layer = node(kind, "x w r b", "y", hidden_size=4, activations=relu)
    made = model([layer], [value("x", [30, 1, 3])], [value("y", [30, 1, 1, 4])], weights)
    with warnings.catch_warnings(record=True):
        compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="CPU")
    assert verify_bundle(tmp_path / "m.hcb", tmp_path / "m.onnx").ok
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"x": noise(30, 1, 3)})["y"]
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[-1]).all()
