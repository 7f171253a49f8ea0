"""Normalisations of numbers that differ little, beside their mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import heterocc.runtime
from heterocc.compiler import compile_model

MODEL = """
<ir_version: 9, opset_import: ["" : 21]>
m (float[1,8,h,w] x) => (float[1,8,a,b] layer, float[1,8,c,1] mean, float[1,8,d,1] inverse, float[1,8,e,f] group,
                         float[1,8,g,i] instance, float[1,8,j,k] spread)
   <float[8] one = {1,1,1,1,1,1,1,1}, float[8] none = {0,0,0,0,0,0,0,0}, float[1] scale = {1}>
{
   layer, mean, inverse = LayerNormalization (x, scale)
   group = GroupNormalization <num_groups = 2> (x, one, none)
   instance = InstanceNormalization (x, one, none)
   spread = MeanVarianceNormalization (x)
}
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> heterocc.runtime.Session:
    folder: Path = tmp_path_factory.mktemp("normalisations")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
    compile_model(folder / "m.onnx", folder / "m.hcb", devices="CPU")
    return heterocc.runtime.load(folder / "m.hcb")


def test_a_large_mean_leaves_normalisations_exact(session: heterocc.runtime.Session) -> None:
    x = (np.random.default_rng(1).normal(size=(1, 8, 6, 20)) + 3000).astype(np.float32)
    found = session.run({"x": x})
    wide = x.astype(np.float64)
    grouped = _normal(wide.reshape(1, 2, -1), (2,)).reshape(x.shape)
    expected = {
        "layer": _normal(wide, (3,)),
        "inverse": 1 / np.sqrt(wide.var(3, keepdims=True) + 1e-5),
        "group": grouped,
        "instance": _normal(wide, (2, 3)),
        "spread": _normal(wide, (0, 2, 3)),
    }
    for name, right in expected.items():
        assert np.abs(found[name] - right).max() < 2e-3, name


def test_the_spread_of_equal_numbers_is_never_below_zero(session: heterocc.runtime.Session) -> None:
    found = session.run({"x": np.full((1, 8, 6, 20), 317.3, np.float32)})
    assert all(np.isfinite(value).all() for value in found.values())
    assert np.allclose(found["inverse"], 1e5**0.5)


def _normal(data: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    spread = data.var(axes, keepdims=True)
    return np.asarray((data - data.mean(axes, keepdims=True)) / np.sqrt(spread + 1e-5))
