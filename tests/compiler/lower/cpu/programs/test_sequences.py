"""Sequences and optional values of the run on the CPU: results and errors are ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from heterocc.artifacts.errors import FeedError, InputValueError, UnsupportedOpError
from heterocc.compiler import compile_model
from heterocc.runtime import load

_HEAD = '<ir_version: 8, opset_import: ["":18]>'
_RNG = np.random.default_rng(0)


def _array(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.standard_normal(shape, np.float32)


def _of(*lengths: int) -> list[np.ndarray[Any, Any]]:
    return [_array(length) for length in lengths]


def _number(value: int) -> np.ndarray[Any, Any]:
    return np.array(value, np.int64)


CASES: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]] = {
    "tensors at places of the run": (
        """g (seq(float[k]) s, float[m] x, int32 i, int64 j, int64 p)
        => (seq(float[k]) t, seq(float[k]) u, float[a] y, int64 n) {
        v = Abs(x) t = SequenceInsert(s, v, i) e = SequenceErase(t, j) u = SequenceInsert(e, x)
        w = SequenceAt(u, p) y = Neg(w) n = SequenceLength(e) }""",
        [
            {"s": _of(2, 0, 3), "x": _array(2), "i": np.array(i, np.int32), "j": _number(j), "p": _number(p)}
            for i, j, p in (
                *((0, 0, 0), (3, 3, 3), (-3, -4, -4), (-1, -1, -1)),
                *((4, 0, 0), (-4, 0, 0), (0, 4, 0), (0, -5, 0), (0, 0, 4), (0, 0, -5)),
            )
        ]
        + [{"s": [], "x": _array(1), "i": np.array(0, np.int32), "j": _number(0), "p": _number(-1)}],
    ),
    "pieces of one length": (
        """g (float[n,3] x, int64 k) => (seq(float[a,3]) s, float[b,3] last, int64 m) {
        y = Neg(x) s = SplitToSequence<axis = 0>(y, k) i = Constant<value_int = -1>()
        t = SequenceAt(s, i) last = Relu(t) m = SequenceLength(s) }""",
        [{"x": _array(n, 3), "k": _number(k)} for n, k in ((4, 2), (5, 2), (1, 7), (3, 0), (3, -2))],
    ),
    "pieces of computed lengths, joined and stacked": (
        """g (float[3,n] x, int64[m] k) => (float[3,a] y, float[3,b,c] z, seq(float[3,d]) s) {
        r = Neg(x) s = SplitToSequence<axis = -1>(r, k) j = ConcatFromSequence<axis = 1>(s) y = Exp(j)
        z = ConcatFromSequence<axis = 1, new_axis = 1>(s) }""",
        [{"x": _array(3, 6), "k": np.array(k, np.int64)} for k in ([2, 2, 2], [6], [3, 2, 1], [1, 2], [7, -1], [9, 9])],
    ),
    "a loop collects tensors of growing length": (
        """g (float[n] x, int64 trips) => (seq(float[]) r, float[a] y) {
        e = SequenceEmpty() yes = Constant<value_int = 1>() c = Cast<to = 9>(yes) zero = Constant<value_ints = [0]>()
        r = Loop(trips, c, e) <body = step (int64 i, bool go, seq(float[k]) s) => (bool on, seq(float[k]) t) {
            on = Identity(go) one = Constant<value_ints = [1]>() j = Reshape(i, one) end = Add(j, one)
            z = Slice(x, zero, end) w = Mul(z, z) t = SequenceInsert(s, w)
        }>
        y = ConcatFromSequence<axis = 0>(r) }""",
        [{"x": _array(5), "trips": _number(n)} for n in (1, 3, 8, 0)],
    ),
    "a loop collects rows of a size that its body computes": (
        """g (float[n] x, int64 trips) => (float[a,b] r) {
        yes = Constant<value_int = 1>() c = Cast<to = 9>(yes)
        r = Loop(trips, c) <body = step (int64 i, bool go) => (bool on, float[l] o) {
            on = Identity(go) zero = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
            j = Reshape(i, one) end = Add(j, one) z = Slice(x, zero, end) o = Neg(z)
        }> }""",
        [{"x": _array(n), "trips": _number(trips)} for n, trips in ((1, 4), (5, 1), (5, 0), (3, 2))],
    ),
    "a scan collects such rows along several axes, backwards": (
        """g (float[m,4] x, bool[4] c) => (float[a,b] r, float[m,4] q, float[d,e,f] w) {
        z = Constant<value_floats = [0.0]>()
        last, t, q, w = Scan<num_scan_inputs = 1, scan_output_directions = [1, 0, 1], scan_output_axes = [1, 0, -1],
            body = step (float[1] s, float[4] row) => (float[1] s2, float[d] o, float[4] p, float[1,e] v) {
                o = Compress<axis = 0>(row, c) s2 = Identity(s) p = Neg(row)
                zero = Constant<value_ints = [0]>() v = Unsqueeze(o, zero)
            }>(z, x)
        r = Neg(t) }""",
        # Not for rows of no elements: ONNX Runtime 1.32 divides by their number, which ends the process.
        [{"x": _array(m, 4), "c": np.arange(4) < k} for m, k in ((3, 2), (1, 4), (5, 1), (2, 3))],
    ),
    "a loop removes tensors of any rank": (
        """g (seq(float[]) q, int64 trips) => (seq(float[]) r) {
        yes = Constant<value_int = 1>() c = Cast<to = 9>(yes)
        r = Loop(trips, c, q) <body = step (int64 i, bool go, seq(float[]) s) => (bool on, seq(float[]) t) {
            n = SequenceLength(s) two = Constant<value_int = 2>() on = Greater(n, two)
            zero = Constant<value_int = 0>() t = SequenceErase(s, zero)
        }> }""",
        [{"q": [_array(2, 2), _array(3), _array(), _array(0, 4)], "trips": _number(n)} for n in (2, 9, 0)]
        + [{"q": [], "trips": _number(1)}],
    ),
    "a map over two sequences and a tensor, of which sizes may be 1": (
        """g (seq(float[k]) s, seq(float[l]) u, float[m] x) => (seq(float[]) r, seq(bool[]) t) {
        r, t = SequenceMap(s, u, x) <body = b (float[k] p, float[l] q, float[m] w) => (float[o] v, bool[o] l) {
            a = Add(p, q) v = Mul(a, w) l = Less(v, q)
        }> }""",
        [
            {"s": _of(*s), "u": _of(*u), "x": _array(m)}
            for s, u, m in (
                ([3, 1], [3, 3], 3),
                ([1, 4], [4, 1], 1),
                ([], [], 2),
                ([3], [2], 1),
                ([2], [2], 5),
                ([0], [1], 1),
            )
        ],
    ),
    "branches with sequences, and with what is optional": (
        """g (optional(seq(float[k])) o, bool c, float[2] x) => (optional(seq(float[])) y, bool h, int64 n) {
        y = If(c) <
            then_branch = yes () => (optional(seq(float[])) p) { p = Identity(o) },
            else_branch = no () => (optional(seq(float[])) q) {
                z = Neg(x) s = SequenceConstruct(x, z, x) q = Optional(s) }
        >
        h = OptionalHasElement(y)
        n = If(h) <
            then_branch = some () => (int64 a) { t = OptionalGetElement(y) a = SequenceLength(t) },
            else_branch = none () => (int64 b) { b = Constant<value_int = -1>() }
        > }""",
        [{"o": o, "c": np.array(c), "x": _array(2)} for o in (_of(1, 3), [], None) for c in (True, False)],
    ),
    "an optional tensor": (
        """g (optional(float[n,2]) o, float[2] d) => (float[a,2] y, bool h) {
        h = OptionalHasElement(o) g = OptionalGetElement(o) y = Add(g, d) }""",
        [{"o": o, "d": _array(2)} for o in (_array(3, 2), None)],
    ),
}


def _same(got: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(map(_same, got, expected))
    if expected is None or got is None:
        return got is expected
    return got.dtype == expected.dtype and got.shape == expected.shape and np.allclose(got, expected, 1e-5, 1e-6)


@pytest.mark.parametrize(("text", "feeds"), CASES.values(), ids=CASES)
def test_results_and_errors_are_those_of_onnx_runtime(
    text: str, feeds: Sequence[Mapping[str, Any]], tmp_path: Path
) -> None:
    model = parser.parse_model(_HEAD + text)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    reference = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    ended = 0
    with load(tmp_path / "m.hcb") as session:
        for feed in feeds:
            try:
                expected = reference.run(None, dict(feed))
            except Exception:  # ONNX Runtime's classes have no common base
                ended += 1
                with pytest.raises(InputValueError, match=r"out of range|length|sum|shape|sizes|empty|no tensors"):
                    session.run(feed)
                continue
            got = session.run(None, feed)
            assert all(map(_same, got, expected)), feed
    assert ended < len(feeds)


def test_results_are_not_the_arrays_of_the_caller(tmp_path: Path) -> None:
    model = parser.parse_model(
        _HEAD + "g (seq(float[k]) s, float[2] x) => (seq(float[k]) y) { y = SequenceInsert(s, x) }"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    feed = {"s": _of(2), "x": _array(2)}
    with load(tmp_path / "m.hcb") as session:
        first, second = session.run(feed)["y"]
        first[:] = second[:] = 7
    assert not (feed["s"][0] == 7).any() and not (feed["x"] == 7).any()


def test_inputs_of_another_form_are_refused_before_the_run(tmp_path: Path) -> None:
    text = """g (seq(float[n,2]) s, optional(float[3]) o) => (seq(float[n,2]) y, bool h) {
    y = Identity(s) h = OptionalHasElement(o) }"""
    compile_model(parser.parse_model(_HEAD + text), tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    good = {"s": [_array(4, 2)], "o": None}
    with load(tmp_path / "m.hcb") as session:
        assert [str(i) for i in session.inputs] == [
            "s: seq(tensor(float)) of [?, 2]",
            "o: optional(tensor(float)) of [3]",
        ]
        for name, value, match in (
            ("s", _array(4, 2), "input 's' must be a list of arrays, got ndarray"),
            ("s", None, "input 's' must be a list of arrays, got NoneType"),
            ("s", [_array(4, 2), _array(4)], r"input 's\[1\]' must have shape \[\?, 2\], got \[4\]"),
            ("s", [_array(4, 2).astype(np.float64)], r"input 's\[0\]' must have dtype float32, got float64"),
            ("s", [1.0], r"input 's\[0\]' must be a numpy array, got float"),
            ("o", _array(4), r"input 'o' must have shape \[3\], got \[4\]"),
            ("o", [_array(3)], "input 'o' must be a numpy array, got list"),
        ):
            with pytest.raises(FeedError, match=match):
                session.run({**good, name: value})
        assert len(session.run(good)["y"]) == 1


def test_a_tensor_of_unknown_rank_has_no_code(tmp_path: Path) -> None:
    model = parser.parse_model(_HEAD + "g (seq(float[]) s, int64 i) => (float[] y) { t = SequenceAt(s, i) y = Neg(t) }")
    with pytest.raises(UnsupportedOpError, match=r"the rank or a size of 't' is not known|'t' has shape"):
        compile_model(model, tmp_path / "m.hcb", devices="CPU")


def test_a_scan_collects_rows_of_no_elements(tmp_path: Path) -> None:
    text, _ = CASES["a scan collects such rows along several axes, backwards"]
    compile_model(parser.parse_model(_HEAD + text), tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    x = _array(2, 4)
    with load(tmp_path / "m.hcb") as session:
        got = session.run({"x": x, "c": np.zeros(4, bool)})
    assert got["r"].shape == (0, 2) and got["w"].shape == (1, 0, 2)
    np.testing.assert_array_equal(got["q"], -x)
