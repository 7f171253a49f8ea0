"""Sequences and optional values whose elements the model determines become tensors, with ONNX Runtime's results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from heterocc.artifacts.errors import InputError
from heterocc.compiler import compile_model
from heterocc.compiler.conformance.onnx_backend import HeteroccBackend
from heterocc.compiler.importer.draft.draft import nodes_of
from heterocc.compiler.importer.pipeline import import_model
from heterocc.runtime import load

_RNG = np.random.default_rng(0)
_HEAD = '<ir_version: 8, opset_import: ["":18]>'
_X = _RNG.standard_normal((3, 6), np.float32)


def _array(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.standard_normal(shape, np.float32)


_CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "rows of one given length, which lose their axis": (
        """g (float[N,6] x, float[3,2] z) => (float[6] y, float[2] w) { k = Constant<value_int=1>()
        s = SplitToSequence<axis=0,keepdims=0>(x, k) i = Constant<value_int=1>() y = SequenceAt(s, i)
        t = SplitToSequence<axis=0,keepdims=0>(z, k) w = SequenceAt(t, i) }""",
        {"x": _X, "z": _array(3, 2)},
    ),
    "parts of one length, the last one shorter": (
        """g (float[N,7] x) => (float[N,A] y, float[N,B] z, int64 n) {
        k = Constant<value_int=3>() s = SplitToSequence<axis=1>(x, k) i = Constant<value_int=2>()
        j = Constant<value_int=-3>() y = SequenceAt(s, i) z = SequenceAt(s, j) n = SequenceLength(s) }""",
        {"x": _array(3, 7)},
    ),
    "parts of computed lengths": (
        """g (float[N,6] x, int64[2] k) => (float[A,6] y) {
        s = SplitToSequence<axis=0>(x, k) y = ConcatFromSequence<axis=0>(s) }""",
        {"x": _X, "k": np.array([1, 2])},
    ),
    "rows of a dynamic dimension, at a place of the run": (
        """g (float[N,6] x, int64 i) => (float[6] y, int64 n) {
        s = SplitToSequence<axis=0,keepdims=0>(x) y = SequenceAt(s, i) n = SequenceLength(s) }""",
        {"x": _X, "i": np.array(-1)},
    ),
    "rows at a place of the run that is a vector": (
        """g (float[N,6] x, int64[1] i) => (float[6] y, float[6] z) {
        s = SplitToSequence<axis=0,keepdims=0>(x) y = SequenceAt(s, i) a = Neg(y) b = Abs(y)
        t = SequenceConstruct(a, b) z = SequenceAt(t, i) }""",
        {"x": _X, "i": np.array([1])},
    ),
    "as many rows as there are": (
        """g (float[N,6] x) => (float[A,6] y) {
        n = Shape<end = 1>(x) k = ConstantOfShape<value = int64[1] {1}>(n)
        s = SplitToSequence<axis=0>(x, k) y = ConcatFromSequence<axis=0>(s) }""",
        {"x": _X},
    ),
    "rows of a dynamic dimension stacked and joined elsewhere": (
        """g (float[N,6,2] x) => (float[6,N,2] y, float[A,2] z) {
        s = SplitToSequence<axis=0,keepdims=0>(x)
        y = ConcatFromSequence<axis=1,new_axis=1>(s) z = ConcatFromSequence<axis=0>(s) }""",
        {"x": _array(3, 6, 2)},
    ),
    "elements inserted, erased and stacked": (
        """g (float[N,6] x) => (float[N,3,6] y, float[A,6] z) {
        a = Relu(x) b = Neg(x) e = SequenceEmpty() s = SequenceInsert(e, x) o = Constant<value_int=0>()
        t = SequenceInsert(s, a, o) u = SequenceInsert(t, b) m = Constant<value_int=-2>() v = SequenceErase(u, m)
        y = ConcatFromSequence<axis=1,new_axis=1>(u) z = ConcatFromSequence<axis=0>(v) }""",
        {"x": _X},
    ),
    "an element at a place of the run": (
        """g (float[N,6] x, int64 i) => (float[N,6] y) {
        a = Relu(x) b = Neg(x) s = SequenceConstruct(x, a, b) y = SequenceAt(s, i) }""",
        {"x": _X, "i": np.array(-1)},
    ),
    "tensors that a loop collects": (
        """g (float[N,6] x, int64 n) => (float[A,6] y, float[N,6,B] z, int64 m) {
        e = SequenceEmpty<dtype=1>() t = Constant<value = bool {1}>()
        s = Loop(n, t, e) <body = b (int64 i, bool c, seq(float[N,6]) p) => (bool d, seq(float[N,6]) q) {
            d = Identity(c) f = Cast<to=1>(i) r = Add(x, f) q = SequenceInsert(p, r) }>
        y = ConcatFromSequence<axis=0>(s) z = ConcatFromSequence<axis=-1,new_axis=1>(s) m = SequenceLength(s) }""",
        {"x": _X, "n": np.array(4)},
    ),
    "states that a loop keeps in a sequence": (
        """g (float[N,6] x, int64 n) => (float[N,6] y, float[N,6] z) {
        a = Neg(x) e = SequenceConstruct(x, a) t = Constant<value = bool {1}>()
        s = Loop(n, t, e) <body = b (int64 i, bool c, seq(float[N,6]) p) => (bool d, seq(float[N,6]) q) {
            d = Identity(c) l = Constant<value_int=0>() m = Constant<value_int=1>()
            u = SequenceAt(p, l) v = SequenceAt(p, m) r = Add(u, v) w = Tanh(u) q = SequenceConstruct(r, w) }>
        o = Constant<value_int=0>() k = Constant<value_int=1>() y = SequenceAt(s, o) z = SequenceAt(s, k) }""",
        {"x": _X, "n": np.array(3)},
    ),
    "a loop over the elements of a sequence": (
        """g (float[N,6] x) => (float[A,6] y, float[2,N,6] z) {
        a = Neg(x) e = SequenceConstruct(x, a) n = SequenceLength(e) t = Constant<value = bool {1}>()
        h = SequenceEmpty()
        s, z = Loop(n, t, h) <body = b (int64 i, bool c, seq(float[N,6]) p)
                              => (bool d, seq(float[N,6]) q, float[N,6] r) {
            d = Identity(c) u = SequenceAt(e, i) r = Exp(u) q = SequenceInsert(p, r) }>
        y = ConcatFromSequence<axis=0>(s) }""",
        {"x": _X},
    ),
    "a map over sequences": (
        """g (float[N,6] x) => (float[A,6] y) {
        a = Neg(x) e = SequenceConstruct(x, a) f = SequenceConstruct(a, x)
        s = SequenceMap(e, f) <body = b (float[N,6] p, float[N,6] q) => (float[N,6] r) {
            u = Exp(p) r = Sub(u, q) }>
        y = ConcatFromSequence<axis=0>(s) }""",
        {"x": _X},
    ),
    "branches that return sequences": (
        """g (float[N,6] x, bool c) => (float[A,6] y) {
        s = If(c) <then_branch = t () => (seq(float[N,6]) p) { a = Neg(x) p = SequenceConstruct(x, a) },
                   else_branch = f () => (seq(float[N,6]) q) { b = Exp(x) q = SequenceConstruct(b, x) }>
        y = ConcatFromSequence<axis=0>(s) }""",
        {"x": _X, "c": np.array(False)},
    ),
    "optional values": (
        """g (float[N,6] x) => (float[N,6] y, bool b, bool c) {
        o = Optional(x) p = Optional<type = float[3]>() b = OptionalHasElement(o) c = OptionalHasElement(p)
        y = OptionalGetElement(o) }""",
        {"x": _X},
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_known_sequences_run_on_the_cpu_alone(name: str) -> None:
    text, feed = _CASES[name]
    model = parser.parse_model(_HEAD + text)
    operators = {n.op_type for n in nodes_of(import_model(model, keep_dims=True, assume=True).proto.graph.node)}
    assert not [o for o in operators if "Sequence" in o or "Optional" in o]
    expected = ort.InferenceSession(model.SerializeToString()).run(None, dict(feed))
    with HeteroccBackend.prepare(model, "CPU", check=False, cpu_variant=False) as prepared:
        results = prepared.run(feed)
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ("k = Constant<value_int=2>()", {}),
        ("k = Cast<to=7>(given)", {"given": [0, -1, 3]}),
        ("o = Constant<value_ints=[1]>() c = Reshape(given, o) k = ConstantOfShape<value = int64[1] {2}>(c)",
         {"given": [1, 3, -1]}),
        ("k = Constant<value_int=-1>()", {"given": [2]}),
    ],
)  # fmt: skip
def test_pieces_of_a_dynamic_dimension_are_there_or_an_error(
    tmp_path: Path, parts: str, wrong: Mapping[str, list[int]]
) -> None:
    """They were slices, which are empty where there is no piece, and take any length."""
    text = f"""g (float[N,6] x, int64 given) => (float[A,6] y, int64 n) {{ {parts} i = Constant<value_int=1>()
        s = SplitToSequence<axis=0>(x, k) y = SequenceAt(s, i) n = SequenceLength(s) }}"""
    model = parser.parse_model(_HEAD + text)
    ort.set_default_logger_severity(4)
    reference = ort.InferenceSession(model.SerializeToString())
    compile_model(model, tmp_path / "m.hcb", devices="CPU", check=False)
    feeds = [(3, 2), *((3, number) for number in wrong.get("given", ())), (1, 2), (0, 2)]
    with load(tmp_path / "m.hcb") as session:
        for rows, number in feeds:
            feed = {"x": np.zeros((rows, 6), np.float32), "given": np.array(number)}
            try:
                wanted = reference.run(None, feed)
            except Exception:
                with pytest.raises(InputError):
                    session.run(feed)
            else:
                found = session.run(feed)
                np.testing.assert_array_equal(found["y"], wanted[0])
                assert found["n"] == wanted[1]


def test_a_sequence_of_unknown_length_stays_one() -> None:
    model = parser.parse_model(
        _HEAD + "g (seq(float[N]) s, int64 i) => (float[A] y) { y = SequenceAt(s, i) }",
    )
    onnx.checker.check_model(model)
    imported = import_model(model, keep_dims=True, assume=True)
    assert [n.op_type for n in imported.graph.nodes] == ["SequenceAt"]
    assert imported.elements(imported.graph.inputs[0]) == (None,)


def test_tensors_that_differ_from_trip_to_trip_do_not_become_rows() -> None:
    """ONNX Runtime stacks only rows of one shape."""
    text = """g (float[6] x, int64 n) => (float[A] y) {
    e = SequenceEmpty() yes = Constant<value_int=1>() c = Cast<to=9>(yes) zero = Constant<value_ints=[0]>()
    s = Loop(n, c, e) <body = b (int64 i, bool go, seq(float[]) t) => (bool on, seq(float[]) u) {
        on = Identity(go) one = Constant<value_ints=[1]>() j = Reshape(i, one) k = Add(j, one)
        p = Slice(x, zero, k) u = SequenceInsert(t, p) }>
    y = ConcatFromSequence<axis=0>(s) }"""
    model = parser.parse_model(_HEAD + text)
    feed = {"x": _X[0], "n": np.array(3)}
    expected = ort.InferenceSession(model.SerializeToString()).run(None, feed)
    for devices in ("CPU", "ORT"):
        with HeteroccBackend.prepare(model, devices, check=False, cpu_variant=False) as prepared:
            np.testing.assert_array_equal(prepared.run(feed)[0], expected[0])
