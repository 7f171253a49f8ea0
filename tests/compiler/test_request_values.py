"""Requests with values out of range end with an error that names the node, not with numbers from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from heterocc.artifacts.errors import InputError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.guard_pages import guarded
from tests.reference import reference_session

Feed = Mapping[str, Any]


def _model(text: str, opset: int) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    proto: onnx.ModelProto = onnx.parser.parse_model(f"{header} g {text}")
    return proto


MAP = np.arange(72, dtype=np.float32).reshape(2, 1, 6, 6)
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], np.float32)
SCORES = np.array([[[0.5, 0.4, 0.3]]], np.float32)
SELECT = (
    "(float[b, n, four] x, float[b, c, n] s, int64[one] k, float[one] t, float[l] m) => (int64[o, 3] y)"
    "{ y = NonMaxSuppression(x, s, k, t, m) }"
)
SELECTED: Feed = {"x": BOXES, "s": SCORES, "k": np.array([3]), "t": np.float32([0.5]), "m": np.float32([0.1])}
SCATTER = "(float[b, n] x, float[b, k] u, int64[b] at) => (float[b, n] y) { y = TensorScatter<axis=-1>(x, u, at) }"
CIRCULAR = SCATTER.replace("axis=-1", 'axis=-1, mode="circular"')
SCATTERED: Feed = {"x": np.zeros((2, 5), np.float32), "u": np.ones((2, 2), np.float32), "at": np.array([0, 3])}
POOL = "(float[b, 1, h, w] x, float[n, 5] r) => (float[n, 1, 2, 2] y) { y = MaxRoiPool<pooled_shape=[2, 2]>(x, r) }"
POOLED: Feed = {"x": MAP, "r": np.array([[1, 0, 0, 4, 4], [0, 1, 1, 3, 3]], np.float32)}
RESIZE = '(float[b, 1, h, w] x, float[4] s) => (float[b, 1, i, j] y) { y = Resize<mode="nearest">(x, , s) }'
RESIZED: Feed = {"x": MAP, "s": np.float32([1, 1, 2, 2])}
RESIZE_TO = '(float[b, 1, h, w] x, int64[4] s) => (float[b, 1, i, j] y) { y = Resize<mode="nearest">(x, , , s) }'
RESIZE_KNOWN = """(float[b, 1, h, w] x) => (float[2, 1, 4, 6] y) <int64[4] s = {2, 1, 4, 6}>
    { y = Resize<mode="nearest">(x, , , s) }"""
TOTALS = "(float[n] x, int64 a) => (float[n] y) { y = CumSum(x, a) }"
EXTREME = "(float[a, b] x) => (int64[c, b] y) { y = ArgMax<axis=0>(x) }"
WHOLE = "(float[a, 3, h, w] x) => (float[a, 3, 1, 1] y) { y = GlobalMaxPool(x) }"
IMPULSE = np.eye(1, 16, dtype=np.float32).reshape(2, 8, 1)  # its transforms are exact
SIGNAL: Feed = {"x": IMPULSE, "a": np.array(1)}
FOURIER = "(float[b, 8, 1] x, int64 a) => (float[b, 8, 2] y) { y = DFT(x, , a) }"
POINTS = "(float[b, n, 1] x) => (float[b, n, 2] y) { y = DFT<axis=1>(x) }"
FRAMES = "(float[b, n, 1] x, int64 s, int64 l) => (float[b, f, k, 2] y) { y = STFT(x, s, , l) }"
FRAMED: Feed = {"x": IMPULSE, "s": np.array(2), "l": np.array(4)}
WINDOWED = FRAMES.replace("l) =>", "l, float[w] v) =>").replace("s, ,", "s, v,")
CACHED = (
    "(float[b, 1, 8] x, float[b, 1, 8] k, float[b, 1, 8] v, float[b, 1, 6, 8] p, float[b, 1, 6, 8] q, int32[b] l, "
    "int32 t) => (float[b, 1, 8] z, float[b, 1, n, 8] y, float[b, 1, n, 8] w) { z, y, w = "
    "com.microsoft.GroupQueryAttention<num_heads=1, kv_num_heads=1>(x, k, v, p, q, l, t) }"
)
ROW = np.ones((1, 1, 8), np.float32)
KEYS = np.ones((1, 1, 6, 8), np.float32)
ATTENDED: Feed = {
    **dict.fromkeys("xkv", ROW),
    **dict.fromkeys("pq", KEYS),
    "l": np.array([5], np.int32),
    "t": np.array(6, np.int32),
}

CASES: dict[str, tuple[str, int, Feed, Feed, str]] = {
    "a region of an image that is not there": (POOL, 17, POOLED, {"r": POOLED["r"] + [1, 0, 0, 0, 0]}, "MaxRoiPool"),
    "a region of image -1": (POOL, 17, POOLED, {"r": POOLED["r"] - [1, 0, 0, 0, 0]}, "MaxRoiPool"),
    "a region of no image": (POOL, 17, POOLED, {"r": POOLED["r"] * [np.nan, 1, 1, 1, 1]}, "MaxRoiPool"),
    "a start that leaves no room": (SCATTER, 24, SCATTERED, {"at": np.array([0, 4])}, "TensorScatter"),
    "a start before the first": (SCATTER, 24, SCATTERED, {"at": np.array([-1, 0])}, "TensorScatter"),
    "a start far away": (SCATTER, 24, SCATTERED, {"at": np.array([0, 2**62])}, "TensorScatter"),
    "a start before the first of a circle": (CIRCULAR, 24, SCATTERED, {"at": np.array([-1, 0])}, "TensorScatter"),
    "an overlap of more than all": (SELECT, 17, SELECTED, {"t": np.float32([1.5])}, "overlap is not from 0 to 1"),
    "an overlap that is not a number": (SELECT, 17, SELECTED, {"t": np.float32([np.nan])}, "overlap is not from"),
    "no least score": (SELECT, 17, SELECTED, {"m": np.zeros(0, np.float32)}, r"input 'm' must have shape \[1\]"),
    "data of nothing": (
        RESIZE_TO,
        17,
        {"x": MAP, "s": np.array([2, 1, 4, 6])},
        {"x": MAP[:, :, :0]},
        "a size of the data",
    ),
    "data of nothing to a known size": (RESIZE_KNOWN, 17, {"x": MAP}, {"x": MAP[:, :, :, :0]}, "1 or more"),
    "a scale of nothing": (RESIZE, 17, RESIZED, {"s": np.float32([1, 1, 0, 2])}, "a scale is not more than 0"),
    "a scale that is not a number": (RESIZE, 17, RESIZED, {"s": np.float32([1, 1, np.nan, 2])}, "a s[ci]"),
    "an axis that is not there": (TOTALS, 17, {"x": MAP[0, 0, 0], "a": np.array(-1)}, {"a": np.array(1)}, "CumSum"),
    "an axis after the last of a signal": (FOURIER, 20, SIGNAL, {"a": np.array(1 << 33)}, "DFT .* not one of"),
    "an axis before the first of a signal": (FOURIER, 20, SIGNAL, {"a": np.array(-10)}, "DFT .* not one of"),
    "a signal that is too long": (POINTS, 17, {"x": IMPULSE}, {"x": np.zeros((1, (1 << 22) + 1, 1))}, "DFT .* 4194304"),
    "the axis of imaginary parts": (FOURIER, 20, SIGNAL, {"a": np.array(-1)}, "DFT .* not one of"),
    "a frame longer than the signal": (FRAMES, 17, FRAMED, {"l": np.array(9)}, "STFT .* longer than the signal"),
    "a frame of nothing": (FRAMES, 17, FRAMED, {"l": np.array(0)}, "STFT .* length of a frame is not positive"),
    "a frame of a negative length": (FRAMES, 17, FRAMED, {"l": np.array(-(2**63))}, "STFT .* is not positive"),
    "frames without a step": (FRAMES, 17, FRAMED, {"s": np.array(0)}, "STFT .* step is not positive"),
    "a window longer than a frame": (
        WINDOWED,
        17,
        {**FRAMED, "v": np.ones(4, np.float32)},
        {"v": np.ones(5, np.float32)},
        "STFT .* window is not as long as a frame",
    ),
    "a last key after the cache": (
        CACHED,
        17,
        ATTENDED,
        {"l": np.array([6])},
        "Attention 'l': the place of a last token",
    ),
    "a last key before the cache": (CACHED, 17, ATTENDED, {"l": np.array([-1])}, "Attention 'l': the place of"),
    "the greatest of nothing": (EXTREME, 17, {"x": MAP[0, 0]}, {"x": np.zeros((0, 6), np.float32)}, "dimension 'a'"),
    "a map of nothing": (WHOLE, 17, {"x": np.tile(MAP, (1, 3, 1, 1))}, {"x": MAP[:, [0] * 3, :0]}, "dimension 'h'"),
}


SLOW = ("an axis before the first of a signal", "a last key before the cache")


@pytest.mark.parametrize(
    ("text", "opset", "right", "wrong", "message"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (name in SLOW), id=name) for name, case in CASES.items()],
)
def test_a_value_out_of_range_is_an_error(
    text: str, opset: int, right: Feed, wrong: Feed, message: str, tmp_path: Path
) -> None:
    model = _model(text, opset)
    compile_model(model, tmp_path / "m.hcb", devices="CPU", check=False)
    with load(tmp_path / "m.hcb") as session:
        (expected,) = reference_session(model).run(["y"], dict(right))
        np.testing.assert_array_equal(session.run(dict(right))["y"], expected)
        feed = {name: guarded(np.asarray(array, right[name].dtype)) for name, array in {**right, **wrong}.items()}
        for _ in range(2):
            with pytest.raises(InputError, match=message):
                session.run(feed)
        np.testing.assert_array_equal(session.run(dict(right))["y"], expected)
