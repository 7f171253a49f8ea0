"""Keys and values in 16 bits: which inputs and outputs they are, and what the model then computes in ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from heterocc.artifacts.errors import PropertyError
from heterocc.compiler.checking.judge import coarse_values
from heterocc.compiler.importer.caches import caches_of, store_caches
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.reading.source import as_source
from heterocc.runtime.execute.narrow import from_ort, ort_value

HEAD = '<ir_version: 10, opset_import: ["" : OPSET, "com.microsoft" : 1]> net '
PAIR = {"k": "key", "v": "value"}
FORMS = {
    "GroupQueryAttention": (
        "(float[1, 2, 16] x, int32[1] last, int32 all, float[1, 2, 3, 8] k, float[1, 2, 3, 8] v)"
        " => (float[1, 2, 16] y, float[1, 2, 5, 8] key, float[1, 2, 5, 8] value) {"
        "y, key, value = com.microsoft.GroupQueryAttention <num_heads=2, kv_num_heads=2> (x, x, x, k, v, last, all) }",
        PAIR,
    ),
    "MultiHeadAttention": (
        "(float[1, 2, 16] x, float[1, 2, 3, 8] k, float[1, 2, 3, 8] v)"
        " => (float[1, 2, 16] y, float[1, 2, 5, 8] key, float[1, 2, 5, 8] value) {"
        "y, key, value = com.microsoft.MultiHeadAttention <num_heads=2> (x, x, x, , , , k, v) }",
        PAIR,
    ),
    "Attention of ONNX": (
        "(float[1, 2, 16] x, float[1, 2, 3, 8] k, float[1, 2, 3, 8] v)"
        " => (float[1, 2, 16] y, float[1, 2, 5, 8] key, float[1, 2, 5, 8] value) {"
        "y, key, value = Attention <q_num_heads=2, kv_num_heads=2> (x, x, x, , k, v) }",
        PAIR,
    ),
    "Attention of ONNX Runtime": (
        "(float[1, 2, 4] x, float[4, 12] w, float[12] b, float[2, 1, 1, 3, 4] k)"
        " => (float[1, 2, 4] y, float[2, 1, 1, 5, 4] key) {"
        "y, key = com.microsoft.Attention <num_heads=1> (x, w, b, , k) }",
        {"k": "key"},
    ),
    "Concat": (
        "(float[1, 2, 2, 8] x, float[1, 2, 3, 8] k) => (float[1, 2, 2, 5] y, float[1, 2, 5, 8] key) {"
        "key = Concat <axis = 2> (k, x) turned = Transpose <perm = [0, 1, 3, 2]> (key) y = MatMul (x, turned) }",
        {"k": "key"},
    ),
    "branches": (
        "(float[1, 2, 2, 8] x, bool[1] later, float[1, 2, 3, 8] k, float[1, 2, 3, 8] v)"
        " => (float[1, 2, N, 8] key, float[1, 2, M, 8] value) {"
        "key, value = If (later) <then_branch = a () => (float[1, 2, 5, 8] p, float[1, 2, 3, 8] q)"
        " { p = Concat <axis = 2> (k, x) q = Identity (v) },"
        " else_branch = b () => (float[1, 2, 2, 8] r, float[1, 2, 2, 8] s) { r = Neg (x) s = Neg (x) }> }",
        PAIR,
    ),
}


def _model(text: str, opset: int = 23) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD.replace("OPSET", str(opset)) + text)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_caches_of_16_bits_are_the_rounded_ones_and_attention_reads_them(form: str, dtype: str) -> None:
    text, pairs = FORMS[form]
    plain, model = _model(text), _model(text)
    assert store_caches(model, dtype) == pairs
    onnx.checker.check_model(model)
    types = {end.name: end.type.tensor_type.elem_type for end in (*model.graph.input, *model.graph.output)}
    assert {name for name, code in types.items() if code in (10, 16)} == {*pairs, *pairs.values()}
    rng = np.random.default_rng(0)
    known = {"last": np.array([4], np.int32), "all": np.array(5, np.int32), "later": np.array([True])}
    feed = {}
    for info in plain.graph.input:
        sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
        feed[info.name] = known.get(info.name, rng.standard_normal(sizes, np.float32))
    half = onnx.helper.tensor_dtype_to_np_dtype(types["k"])
    for name in pairs:
        feed[name] = feed[name].astype(half).astype(np.float32)  # so that only the outputs are rounded
    exact = _run(plain, feed)
    found = _run(model, {name: array.astype(half) if name in pairs else array for name, array in feed.items()})
    for name, array in exact.items():
        wanted = array.astype(half) if name in pairs.values() else array
        np.testing.assert_array_equal(found[name].astype(np.float32), wanted.astype(np.float32))


def _run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    found = session.run_with_ort_values(names, {name: ort_value(array) for name, array in feed.items()})
    return dict(zip(names, map(from_ort, found), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "(float[1, 4, 2] x, float[1, 4, 3] k) => (float[1, 4, 3] key) { c = Concat <axis = 2> (k, x)"
        " s = Constant <value = int64[1] {2}> () e = Constant <value = int64[1] {5}> () key = Slice (c, s, e, s) }",
        "(float[1, 2, 2, 8] x, float[1, 2, 3, 8] k) => (float[1, 2, 5, 8] key)"
        " { n = Neg (k) key = Concat <axis = 2> (n, x) }",
        "(float[1, 2, 2, 8] x, float[1, 2, 2, 8] k) => (float[1, 2, 2, 8] key) { key = Add (k, x) }",
        "(float16[1, 2, 2, 8] x, float16[1, 2, 3, 8] k) => (float16[1, 2, 5, 8] key)"
        " { key = Concat <axis = 2> (k, x) }",
    ],
    ids=["the state of a convolution", "computed from the past", "a sum", "float16 already"],
)
def test_what_is_no_cache_in_float32_stays(text: str) -> None:
    model = _model(text)
    before = model.SerializeToString(deterministic=True)
    assert not caches_of(model.graph) and not store_caches(model, "float16")
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in _model(text).graph.node]
    assert model.SerializeToString(deterministic=True) == before


def test_bfloat16_needs_an_operator_set_whose_cast_knows_it() -> None:
    with pytest.raises(PropertyError, match="operator set is 12"):
        store_caches(_model(FORMS["Concat"][0], 12), "bfloat16")
    assert store_caches(_model(FORMS["Concat"][0], 12), "float16")


def test_only_a_model_whose_caches_are_stored_so_is_compared_with_a_tolerance_for_it() -> None:
    source = as_source(_model(FORMS["GroupQueryAttention"][0]))
    plain, stored = (import_model(replace(source, caches=caches)) for caches in (None, "float16"))
    assert plain.sha256 != stored.sha256
    assert "y" not in coarse_values(plain)
    assert "y" in coarse_values(stored)


def test_the_room_of_a_window_is_the_least_size_of_its_cache() -> None:
    text = (
        "(float[1, s, 16] x, int32[1] last, int32 all, float[1, 2, room, 8] k, float[1, 2, room, 8] v)"
        " => (float[1, s, 16] y, float[1, 2, room, 8] key, float[1, 2, room, 8] value) {"
        "y, key, value = com.microsoft.GroupQueryAttention <num_heads=2, kv_num_heads=2, local_window_size=32,"
        " sliding_window_cache=1> (x, x, x, k, v, last, all) }"
    )
    bounds = import_model(_model(text), keep_dims=True).bounds
    assert (bounds["room"].min, bounds["s"].min) == (32, 1)
