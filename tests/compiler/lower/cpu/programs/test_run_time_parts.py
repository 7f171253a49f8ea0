"""Split into equal parts of an axis of any length, and MaxUnpool into a shape that is fed, as in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import load

OUTPUTS = "(float[a,2] p, float[b,2] q, float[c,2] r)"
OF_AN_INPUT = "agraph (float[n,2] x) => " + OUTPUTS + " { p, q, r = Split<SPLIT>(x) }"
OF_SELECTED_ROWS = (
    "agraph (float[n,m] x) => " + OUTPUTS + " { found = NonZero(x)  rows = Transpose(found) "
    "f = Cast<to = 1>(rows)  p, q, r = Split<SPLIT>(f) }"
)


@pytest.mark.parametrize("text", [OF_AN_INPUT, OF_SELECTED_ROWS], ids=["an input", "selected rows"])
@pytest.mark.parametrize(
    ("opset", "attributes"), [(18, "axis = 0, num_outputs = 3"), (13, "axis = 0"), (11, "axis=-2")]
)
def test_an_axis_of_any_length_is_split_in_equal_parts(text: str, opset: int, attributes: str, tmp_path: Path) -> None:
    model = _model(text.replace("SPLIT", attributes), opset)
    session, reference = _both(model, tmp_path)
    refused = []
    for rows in (1, 2, 3, 4, 5, 7, 9):
        x = np.arange(1, 1 + 2 * rows, dtype=np.float32).reshape(rows, 2)
        if text == OF_SELECTED_ROWS:
            x = x[:, :1]
        if not _same(session, reference, {"x": x}):
            refused.append(rows)
    assert refused == ([1] if opset == 18 else [1, 2, 4, 5, 7])


def test_maxima_are_put_back_in_a_shape_that_is_fed_if_it_has_room_for_them(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[n,1,h,w] x, int64[n,1,h,w] i, int64[4] s) => (float[a,b,c,d] y) "
        "{ r = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(x, i, s)  y = Neg(r) }"
    )
    session, reference = _both(model, tmp_path)
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    shapes = [
        (1, 1, 4, 4),
        (1, 1, 5, 7),
        (2, 1, 4, 4),
        (1, 1, 3, 4),
        (1, 1, -4, 4),
        (1, 0, 4, 4),
        (1, 1, 1 << 33, 1 << 33),
    ]
    places = np.array([0, 3, 10, 15]).reshape(x.shape)
    taken = [_same(session, reference, {"x": x, "i": places, "s": np.array(shape)}) for shape in shapes]
    assert taken == [True, True, False, False, False, False, False]
    with pytest.raises(HeteroccError, match=r"dimension 3 of its result must be .* or more"):
        session.run({"x": x, "i": places, "s": np.array([1, 1, 4, 3])})


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_nan_is_among_the_numbers_that_are_not_zero(dtype: str, tmp_path: Path) -> None:
    """LLVM's code for `!=` is false for NaN. The factor of float16 is computed with as float32, without dimensions."""
    half = np.array(0.5, np.float16).view(np.int16) if dtype == "float16" else 0.5
    text = f"agraph ({dtype}[n,3] x) => (int64[2,k] i, {dtype}[n,3] y) <{dtype} half = {{{half}}}>"
    session, reference = _both(_model(text + "{ i = NonZero(x)  y = Mul(half, x) }"), tmp_path)
    x = np.array([[np.nan, 0, 1], [-0.0, np.inf, np.nan]], np.float32 if dtype == "float" else np.float16)
    assert _same(session, reference, {"x": x})


def test_a_constant_shape_without_room_for_the_maxima_is_refused(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[n,1,h,4] x, int64[n,1,h,4] i) => (float[a,b,c,d] y) <int64[4] s = {1, 1, 6, 8}>"
        "{ y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(x, i, s) }"
    )
    session, reference = _both(model, tmp_path)
    for height, fits in ((3, True), (2, True), (4, False)):
        x = np.ones((1, 1, height, 4), np.float32)
        assert _same(session, reference, {"x": x, "i": np.arange(4 * height).reshape(x.shape)}) == fits


def _model(text: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')


def _both(model: onnx.ModelProto, tmp_path: Path) -> tuple[Any, ort.InferenceSession]:
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return load(tmp_path / "m.hcb"), ort.InferenceSession(model.SerializeToString(), options)


def _same(session: Any, reference: ort.InferenceSession, feed: dict[str, Any]) -> bool:
    """Whether both run, with equal results; False if both refuse."""
    try:
        wanted = reference.run(None, feed)
    except Exception:
        with pytest.raises(HeteroccError):
            session.run(feed)
        return False
    for got, expected in zip(session.run(feed).values(), wanted, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)
    return True
