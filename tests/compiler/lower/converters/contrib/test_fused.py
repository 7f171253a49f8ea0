"""Operators of ONNX Runtime that join a standard one with another are converted as the standard one is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, value
from tests.reference import reference_session


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_a_fused_convolution_pads_an_image_of_any_size(tmp_path: Path, auto_pad: str) -> None:
    fused = node(
        "FusedConv", "x w b", "y", domain="com.microsoft", activation="Relu", auto_pad=auto_pad, strides=[2, 3]
    )
    weights = {"w": noise(3, 2, 3, 3), "b": noise(3, seed=1)}
    made = model([fused], [value("x", ["n", 2, "h", "w0"])], [value("y")], weights, domains=[("com.microsoft", 1)])
    compile_model(made, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        for shape in ((1, 2, 7, 6), (2, 2, 8, 9)):
            feed = {"x": noise(*shape, seed=2)}
            (right,) = reference_session(made).run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], right, rtol=1e-4, atol=1e-5)
