"""Positions of Resize are rounded as in ONNX Runtime, also just beside halfway between two pixels."""

import numpy as np
import pytest

from heterocc.compiler.lower.converters.resize.positions import ARRAYS, nearest, source
from tests.compiler.onnx_build import model, node, value
from tests.reference import reference_session


@pytest.mark.parametrize("rounding", ["round_prefer_ceil", "round_prefer_floor"])
def test_the_nearest_places_are_those_of_onnx_runtime(rounding: str) -> None:
    resize = node(
        "Resize", "x - - s", "y", mode="nearest", nearest_mode=rounding, coordinate_transformation_mode="half_pixel"
    )
    inputs = [value("x", [1, 1, "h", 1]), value("s", [4], 7)]
    session = reference_session(model([resize], inputs, [value("y", [1, 1, "o", 1])]))
    for length in (11, 30, 47, 60):
        x = np.arange(length, dtype=np.float32).reshape(1, 1, length, 1)
        for out in (n for n in range(1, 40) if n != length):
            (right,) = session.run(None, {"x": x, "s": np.array([1, 1, out, 1])})
            ratio = np.float32(out) / np.float32(length)
            places = source(np.arange(out), np.int64(length), np.int64(out), ratio, None, {}, ARRAYS).astype(np.float32)
            np.testing.assert_array_equal(
                np.clip(nearest(places, rounding, ratio, ARRAYS), 0, length - 1), right.ravel()
            )
