"""NaN comes through the activations of recurrent layers (decision 7)."""

from pathlib import Path

import numpy as np

from heterocc.compiler import compile_model
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
