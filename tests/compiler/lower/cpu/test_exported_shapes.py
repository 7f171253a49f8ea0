"""Sizes in the forms that exporters of PyTorch write: one bundle for the CPU alone equals ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.runtime import load

Feed = dict[str, np.ndarray]


def _model(text: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')


def _equal(model: onnx.ModelProto, folder: Path, *feeds: Feed) -> None:
    compile_model(model, folder / "m.hcb", devices="CPU", cpu_variant=False)
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(folder / "m.hcb") as session:
        for feed in feeds:
            wanted = reference.run(None, feed)
            for (output, got), expected in zip(session.run(feed).items(), wanted, strict=True):
                assert got.dtype == expected.dtype and got.shape == expected.shape, output
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=output)


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


FRACTIONS = """
agraph (float[n,2,w] x) => (float[n,2,a] padded, float[n,2,b] half, float[2,c] lower, float[2,d] upper, int64[r] range)
    <int64 last = {2}, float two = {2.0}, float one = {1.0}, float minus = {-1.0}, int64[1] axis = {0},
     int64[5] zeros = {0, 0, 0, 0, 0}, int64[1] front = {0}, int64[1] along = {2}, int64 none = {0}, int64 step = {1}>
{
    shape = Shape(x)
    size = Gather(shape, last)
    number = Cast<to = 1>(size)
    parts = Div(number, two)
    more = Add(parts, one)
    up = Ceil(more)
    whole = Mul(up, two)
    wide = Cast<to = 7>(whole)
    extra = Sub(wide, size)
    extras = Unsqueeze(extra, axis)
    pads = Concat<axis = 0>(zeros, extras)
    padded = Pad(x, pads)
    down = Floor(parts)
    count = Cast<to = 7>(down)
    end = Unsqueeze(count, axis)
    half = Slice(x, front, end, along)
    rest = Sub(size, count)
    others = Unsqueeze(rest, axis)
    sizes = Concat<axis = 0>(end, others)
    first = Gather<axis = 0>(x, none)
    lower, upper = Split<axis = 1>(first, sizes)
    back = Sub(minus, number)
    length = Div(back, minus)
    steps = Ceil(length)
    limit = Cast<to = 7>(steps)
    range = Range(none, limit, step)
}
"""


def test_sizes_that_are_computed_in_floats_and_rounded_are_known(tmp_path: Path) -> None:
    model = _model(FRACTIONS)
    symbols = import_model(model, keep_dims=True, assume=True).symbols
    assert symbols is not None and not symbols.fresh
    _equal(model, tmp_path, *({"x": _numbers(n, 2, w)} for n, w in ((1, 6), (2, 9), (3, 17))))


RELATIVE = """
agraph (float[n,t,4] x) => (float[n,t,t] y)
    <float[1,39,4] table = {TABLE}, int64[1] axis = {0}, int64 middle = {1}, int64 centre = {20}, int64 one = {1},
     int64 before = {19}, int64[1] along = {1}>
{
    shape = Shape(x)
    size = Gather(shape, middle)
    first = Sub(centre, size)
    start = Unsqueeze(first, axis)
    last = Add(before, size)
    end = Unsqueeze(last, axis)
    window = Slice(table, start, end, along)
    turned = Transpose<perm = [0, 2, 1]>(window)
    scores = MatMul(x, turned)
    front = Slice(scores, zero, length, two)
    back = Transpose<perm = [0, 2, 1]>(x)
    own = MatMul(x, back)
    y = Add(own, front)
}
"""


def test_a_window_of_a_table_of_relative_positions_has_a_known_size_and_bounds(tmp_path: Path) -> None:
    numbers = ", ".join(f"{n:.3f}" for n in _numbers(39 * 4))
    text = RELATIVE.replace("TABLE", numbers)
    text = text.replace("int64[1] along = {1}>", "int64[1] along = {1}, int64[1] zero = {0}, int64[1] two = {2}>")
    text = text.replace("front = Slice", "length = Unsqueeze(size, axis) front = Slice")
    _equal(_model(text), tmp_path, *({"x": _numbers(n, t, 4)} for n, t in ((1, 3), (2, 11), (1, 20))))
    with load(tmp_path / "m.hcb") as session, pytest.raises(HeteroccError, match="dimension 't' of input 'x' must be"):
        session.run({"x": _numbers(1, 21, 4)})


def test_the_largest_values_along_a_product_of_two_dimensions_are_as_many_as_asked_for(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[h,w,4] x) => (float[1,10,2] y) <int64[2] flat = {-1, 4}, int64[1] ten = {10}, "
        "int64[1] ends = {1}, int64[2] pair = {20, 1}, int64[3] form = {1, 10, 2}> "
        "{ rows = Reshape(x, flat)  best = ReduceMax<keepdims = 0>(rows, ends)  top, places = TopK(best, ten) "
        "  z = Gather(rows, places)  s = ReduceSum<keepdims = 0>(z, ends)  two = Concat<axis = 0>(s, top) "
        "  y = Reshape(two, form) }"
    )
    _equal(model, tmp_path, *({"x": _numbers(h, w, 4)} for h, w in ((2, 5), (3, 7))))
    with (
        load(tmp_path / "m.hcb") as session,
        pytest.raises(HeteroccError, match="to be 10 or more, not 9"),
    ):
        session.run({"x": _numbers(3, 3, 4)})


def test_tensors_that_one_mask_selects_have_the_same_size(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[n,4] x, float[n] score) => (float[k,4] y) <float zero = {0}, int64[1] last = {1}> "
        "{ keep = Greater(score, zero)  a = NonZero(keep)  i = Transpose<perm = [1, 0]>(a)  rows = GatherND(x, i) "
        "  b = NonZero(keep)  j = Transpose<perm = [1, 0]>(b)  factors = GatherND(score, j) "
        "  f = Unsqueeze(factors, last)  y = Mul(rows, f) }"
    )
    assert sum(node.op_type == "NonZero" for node in import_model(model, keep_dims=True).graph.nodes) == 1
    _equal(model, tmp_path, *({"x": _numbers(n, 4), "score": _numbers(n) - 9 * (n == 3)} for n in (5, 3, 12)))


def test_an_image_of_any_size_is_resized_to_a_fixed_one(tmp_path: Path) -> None:
    model = _model(
        'agraph (float[1,2,h,w] x) => (float[1,2,6,8] y) <int64[4] sizes = {1, 2, 6, 8}> { y = Resize<mode = "linear", '
        'coordinate_transformation_mode = "half_pixel">(x, , , sizes) }'
    )
    _equal(model, tmp_path, *({"x": _numbers(1, 2, h, w)} for h, w in ((5, 9), (6, 8), (13, 3))))


def test_batches_that_only_assumptions_show_to_be_exchanged_become_one_dimension(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[a,n,4] x, float[b,m,4] y) => (float[p,m,q] z) <int64 zero = {0}, int64[1] first = {0}, "
        "int64[2] middle = {-1, 4}, int64[1] one = {1}, int64[1] two = {2}, int64[1] minus = {-1}, "
        "int64 three = {3}, int64 half = {2}, int64 second = {1}> "
        "{ sx = Shape(x)  sn = Gather(sx, second)  less = Sub(sn, three)  count = Div(less, half) "
        "  end = Unsqueeze(count, first)  cut = Slice(x, first, end, one) "
        "  sy = Shape(y)  batch = Gather(sy, zero)  batches = Unsqueeze(batch, first) "
        "  four = Constant<value = int64[1] {4}>()  shape = Concat<axis = 0>(batches, minus, four) "
        "  keys = Reshape(cut, shape)  turned = Transpose<perm = [0, 2, 1]>(keys)  z = MatMul(y, turned) }"
    )
    feeds = ({"x": _numbers(b, n, 4), "y": _numbers(b, m, 4)} for b, n, m in ((1, 7, 2), (3, 12, 5)))
    _equal(model, tmp_path, *feeds)


def test_lengths_of_past_keys_and_values_that_have_names_of_their_own_become_one(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[1,s,4] x, float[1,p,4] keys, float[1,q,4] values) => (float[1,s,4] y) "
        "{ k = Concat<axis = 1>(keys, x)  v = Concat<axis = 1>(values, x)  t = Transpose<perm = [0, 2, 1]>(k) "
        "  a = MatMul(x, t)  w = Softmax<axis = -1>(a)  y = MatMul(w, v) }"
    )
    feeds = [
        {"x": _numbers(1, s, 4), **dict.fromkeys(("keys", "values"), _numbers(1, p, 4))} for s, p in ((3, 2), (1, 9))
    ]
    _equal(model, tmp_path, *feeds)


def test_batches_that_a_reshape_shows_to_be_factors_of_equal_sizes_become_one(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[a,n,4] x, float[b,2] y) => (float[b,n,2,2] z) "
        "<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[2] pair = {2, 2}> "
        "{ sy = Shape(y)  batch = Gather(sy, zero)  batches = Unsqueeze(batch, first)  sx = Shape(x) "
        "  length = Gather(sx, one)  lengths = Unsqueeze(length, first) "
        "  shape = Concat<axis = 0>(batches, lengths, pair)  z = Reshape<allowzero = 1>(x, shape) }"
    )
    _equal(model, tmp_path, *({"x": _numbers(b, n, 4), "y": _numbers(b, 2)} for b, n in ((1, 3), (4, 2))))
