"""Experimental operators refuse what they refuse in ONNX Runtime."""

from pathlib import Path

import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import assert_close, model, node, noise, run_imported, run_original, save, value


@pytest.mark.parametrize(
    "options",
    [
        {"border": [0, 0, 0, 0], "scale": [6, 2]},
        {"border": [2, 1, 0, 0], "scale": [2, 5]},
        {"border": [3, 0, 4, 0]},
        {"border": [0, 2, 0, 4]},
    ],
    ids=str,
)
def test_crop_of_a_map_that_is_too_small_is_an_error(tmp_path: Path, options: dict[str, list[int]]) -> None:
    made = model([node("Crop", "x", "y", **options)], [value("x", "nchw")], [value("y", "nchw")], opset=9)
    path = save(tmp_path, made)
    imported = import_model(path, keep_dims=True)
    small, large = {"x": noise(2, 1, 5, 6)}, {"x": noise(1, 3, 9, 8)}
    assert_close(run_imported(imported, large), run_original(path, large))
    with pytest.raises(InvalidArgument):
        run_original(path, small)
    with pytest.raises((Fail, InvalidArgument, RuntimeException)):
        run_imported(imported, small)
