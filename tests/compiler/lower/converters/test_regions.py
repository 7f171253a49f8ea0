"""RoiAlign on the CPU alone, compared with ONNX Runtime: regions outside of the map, empty ones, and any number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import I64, model, node, noise, run_original, save, value

REGIONS = [[0, 0, 14, 12], [2, 1, 9.5, 7], [-3, -2, 3, 30], [5, 5, 5, 5], [40, 40, 50, 60]]
FEEDS = {
    "x": noise(2, 3, 9, 8),
    "r": np.array(REGIONS, np.float32),
    "b": np.array([0, 1, 1, 0, 0], np.int64),
}
_X = FEEDS["x"].copy()
# Not the first pixel, which ONNX Runtime reads for points outside.
_X[:, 0, 2:4, 3] = _X[:, 1, 0, 1] = _X[1, 2, 1:] = np.nan
WITH_NAN = {**FEEDS, "x": _X}


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("halves", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("samples", "scale"), [(0, 0.5), (2, 0.5), (0, 1.0)])
def test_regions_are_scaled_before_they_are_shifted_and_empty_ones_give_zeros(
    tmp_path: Path, mode: str, halves: str, samples: int, scale: float
) -> None:
    made = node(
        "RoiAlign",
        "x r b",
        "y",
        mode=mode,
        coordinate_transformation_mode=halves,
        sampling_ratio=samples,
        spatial_scale=scale,
        output_height=2,
        output_width=3,
    )
    inputs = [value("x", [2, 3, 9, 8]), value("r", ["k", 4]), value("b", ["k"], I64)]
    path = save(tmp_path, model([made], inputs, [value("y")]))
    compile_model(path, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    with load(tmp_path / "m.hcb") as session:
        found = session.run(FEEDS)["y"]
        found_with_nan = session.run(WITH_NAN)["y"]
    np.testing.assert_allclose(found, run_original(path, FEEDS)[0], rtol=1e-4, atol=1e-5)
    # No NaN hides numbers from a maximum: it is left out unless it is the first term (decision 7).
    np.testing.assert_allclose(found_with_nan, run_original(path, WITH_NAN)[0], rtol=1e-4, atol=1e-5)
    assert np.isnan(found_with_nan).any() and not np.isnan(found_with_nan).all()
