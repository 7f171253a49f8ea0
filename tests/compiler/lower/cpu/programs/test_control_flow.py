"""If, Loop and Scan on the CPU: results equal ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.runtime import load
from tests.compiler.lower.lowered import job

CASES = {
    "an If takes the branch of its condition": (
        """
        agraph (float[3,4] x, bool c) => (float[3,4] y) {
            y = If (c) <
                then_branch = yes () => (float[3,4] a) { t = Add(x, x)  a = Relu(t) },
                else_branch = no () => (float[3,4] b) { b = Neg(x) }
            >
        }
        """,
        [{"c": np.array(True)}, {"c": np.array(False)}],
    ),
    "branches return outer values and constants": (
        """
        agraph (float[2] x, bool c) => (float[2] y, float[2] z) {
            h = Exp(x)
            y, z = If (c) <
                then_branch = yes () => (float[2] a, float[2] d)
                    <float[2] d = {3, 4}> { a = Identity(h) },
                else_branch = no () => (float[2] b, float[2] e) { b = Neg(h)  e = Add(h, x) }
            >
        }
        """,
        [{"c": np.array(True)}, {"c": np.array(False)}],
    ),
    "branches are nested and of different sizes": (
        """
        agraph (float[4] x, bool c, bool d) => (float[n] y) {
            r = If (c) <
                then_branch = yes () => (float[n] a) { a = If (d) <
                    then_branch = deep () => (float[4] e) { e = Neg(x) },
                    else_branch = other () => (float[8] f) { f = Concat<axis = 0>(x, x) }
                > },
                else_branch = no () => (float[2] b)
                    <int64[1] s = {1}, int64[1] t = {3}> { b = Slice(x, s, t) }
            >
            y = Sqrt(r)
        }
        """,
        [{"c": np.array(c), "d": np.array(d)} for c, d in ((True, True), (True, False), (False, True))],
    ),
    "a body reads axes that are constants outside of it": (
        """
        agraph (float[2,2] initial, float[4,2] x) => (float[2,2] last, float[4,1,2] all)
            <int64[1] axis = {0}>
        {
            last, all = Scan <num_scan_inputs = 1,
                body = step (float[2,2] before, float[2] row) => (float[2,2] after, float[1,2] mean) {
                    wide = Unsqueeze(row, axis)
                    after = Add(before, wide)
                    mean = ReduceMean(after, axis)
                }
            > (initial, x)
        }
        """,
        [{}],
    ),
    "a Loop runs a fixed number of trips and collects": (
        """
        agraph (float[2,3] x) => (float[2,3] last, float[5,2,3] all)
            <int64 trips = {5}, float[3] w = {1, 0.5, 2}>
        {
            last, all = Loop (trips, , x) <
                body = step (int64 i, bool go, float[2,3] s)
                => (bool on, float[2,3] t, float[2,3] r) {
                on = Identity(go)
                n = Cast<to = 1>(i)
                m = Mul(s, w)
                t = Add(m, n)
                r = Sub(t, x)
            }>
        }
        """,
        [{}],
    ),
    "a Loop stops by its limit or its condition": (
        """
        agraph (float[2] x, int64 trips, bool first) => (float[2] last, float[k,2] all)
            <float top = {20}>
        {
            last, all = Loop (trips, first, x) <
                body = step (int64 i, bool go, float[2] s)
                => (bool on, float[2] t, float[2] r) {
                t = Add(s, s)
                r = Identity(t)
                m = ReduceMax<keepdims = 0>(t)
                on = Less(m, top)
            }>
        }
        """,
        [
            {"x": np.array([1, 2], np.float32), "trips": np.array(n), "first": np.array(f)}
            for n, f in ((3, True), (50, True), (0, True), (4, False))
        ],
    ),
    "states grow and swap": (
        """
        agraph (float[1] x, float[2] u, float[2] v, int64 trips) => (float[n] y, float[2] p, float[2] q)
            <bool yes = {1}>
        {
            y, p, q = Loop (trips, yes, x, u, v) <body = step (int64 i, bool go, float[m] s, float[2] a, float[2] b)
                => (bool go, float[k] t, float[2] b2, float[2] a2) {
                d = Mul(s, s)
                t = Concat<axis = 0>(s, d)
                b2 = Identity(b)
                a2 = Identity(a)
            }>
        }
        """,
        [{"trips": np.array(n)} for n in (0, 1, 3)],
    ),
    "a Scan runs backwards along other axes": (
        """
        agraph (float[3] h, float[3,4] x) => (float[3] last, float[3,4] y) {
            last, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                scan_output_axes = [1], scan_output_directions = [1],
                body = step (float[3] s, float[3] e) => (float[3] t, float[3] r) { t = Add(s, e)  r = Mul(t, e) }>(h, x)
        }
        """,
        [{}],
    ),
    "a Scan collects rows of any size for any number of trips": (
        """
        agraph (float[n] h, float[k,n] x) => (float[n] last, float[k,n] y, float[n,k] z) {
            last, y, z = Scan<num_scan_inputs = 1, scan_output_axes = [0, 1], scan_output_directions = [0, 1],
                body = step (float[n] s, float[n] e) => (float[n] t, float[n] r, float[n] q) {
                    t = Add(s, e)
                    r = Mul(t, e)
                    q = Neg(t)
                }>(h, x)
        }
        """,
        [{"h": np.ones(n, np.float32), "x": np.full((k, n), 0.5, np.float32)} for n, k in ((3, 4), (1, 1), (5, 2))],
    ),
    "a Loop collects rows of any size until a condition fails": (
        """
        agraph (float[n] x, int64 trips, bool first) => (float[n] last, float[k,n] all)
            <float top = {20}>
        {
            last, all = Loop (trips, first, x) <
                body = step (int64 i, bool go, float[n] s)
                => (bool on, float[n] t, float[n] r) {
                t = Add(s, s)
                r = Identity(t)
                m = ReduceMax<keepdims = 0>(t)
                on = Less(m, top)
            }>
        }
        """,
        [
            {"x": np.ones(n, np.float32), "trips": np.array(t), "first": np.array(True)}
            for n, t in ((2, 3), (5, 50), (1, 1))
        ],
    ),
    "an If inside a Loop inside an If": (
        """
        agraph (float[3] x, bool c, int64 trips) => (float[3] y) <bool yes = {1}, int64 one = {1}> {
            y = If (c) <
                then_branch = first () => (float[3] a) {
                    a = Loop (trips, yes, x) <body = step (int64 i, bool go, float[3] s) => (bool on, float[3] t) {
                        on = Identity(go)
                        early = Less(i, one)
                        t = If (early) <
                            then_branch = p () => (float[3] e) { e = Add(s, x) },
                            else_branch = q () => (float[3] f) { f = Mul(s, x) }
                        >
                    }>
                },
                else_branch = second () => (float[3] b) { b = Identity(x) }
            >
        }
        """,
        [{"c": np.array(c), "trips": np.array(n)} for c, n in ((True, 3), (True, 0), (False, 3))],
    ),
}


QUICK = ("states grow and swap", "an If inside a Loop inside an If")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_control_flow_on_the_cpu_alone_gives_the_results_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    text, feeds = CASES[name]
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(7)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    drawn = {n: numbers.random(s, np.float32) + 0.5 for n, s in shapes.items()}
    for given in feeds:
        feed = {n: np.asarray(given.get(n, drawn[n])) for n in shapes}
        wanted = reference.run(None, feed)
        for (output, got), expected in zip(session.run(feed).items(), wanted, strict=True):
            assert got.dtype == expected.dtype and got.shape == expected.shape, output
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


RANKS = """
agraph (float[n,w] x) => (float[n,m] y) <int64[3] s = {0, 4, -1}, int64[1] last = {-1}, int64[1] one = {1},
    float[4,2] k = {1, 2, 3, 4, 5, 6, 7, 8}>
{
    r = Reshape(x, s)
    sizes = Shape(r)
    size = Gather(sizes, last)
    flat = Equal(size, one)
    z = If (flat) <
        then_branch = yes () => (float[p,q] a) { a = Squeeze(r, last) },
        else_branch = no () => (float[p,q,t] b) { b = Identity(r) }
    >
    y = Gemm(z, k)
}
"""


def test_a_run_ends_if_it_takes_a_branch_whose_result_a_later_node_cannot_take(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {RANKS}')
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    np.testing.assert_array_equal(session.run(feed)["y"], reference.run(None, feed)[0])
    with pytest.raises(InputValueError, match="takes its else branch, in which or after which"):
        session.run({"x": np.ones((3, 8), np.float32)})


def test_a_branch_that_removes_a_dimension_of_another_size_than_one_ends_the_run(tmp_path: Path) -> None:
    text = """
    agraph (float[n,c,w] x, bool first) => (float[p,q] y) <int64[1] last = {-1}> {
        y = If (first) <
            then_branch = yes () => (float[p,q] a) { a = Squeeze(x, last) },
            else_branch = no () => (float[p,q] b)
                { d = MaxPool<kernel_shape = [2]>(x)  b = ReduceMax<keepdims = 0>(d, last) }
        >
    }
    """
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    one, two = np.ones((2, 3, 1), np.float32), np.ones((2, 3, 2), np.float32)
    np.testing.assert_array_equal(session.run({"x": one, "first": np.array(True)})["y"], one[..., 0])
    np.testing.assert_array_equal(session.run({"x": two, "first": np.array(False)})["y"], two[..., 0])
    with pytest.raises(InputValueError, match=r"Squeeze .* dimension 2 of 'data' must be 1"):
        session.run({"x": two, "first": np.array(True)})
    long = np.ones((2, 3, 9), np.float32)
    np.testing.assert_array_equal(session.run({"x": long, "first": np.array(False)})["y"], long[..., 0])


def test_a_turn_of_a_scan_calls_a_kernel_for_its_arithmetic_and_one_that_counts() -> None:
    """The row is taken where it is read, and a state that is also collected is written once."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[b,8] initial, float[t,b,8] x) => (float[b,8] last, float[t,b,8] y) {
            last, y = Scan<num_scan_inputs = 1, body = step (float[b,8] h, float[b,8] row)
                => (float[b,8] next, float[b,8] same) {
                    s = Add(h, row)  next = Tanh(s)  same = Identity(next)
                }>(initial, x)
        }
    """
    imported = import_model(onnx.parser.parse_model(text), keep_dims=True)
    kernels = [info.symbol for info in CpuLowering().lower(job(imported)).kernels]
    outside = ("copy", "y_rows", "Scan_0_trips")  # the initial state, memory for the rows, and their number
    assert len([symbol for symbol in kernels if not symbol.startswith(outside)]) == 2, kernels


def test_a_sum_without_terms_in_a_branch_is_zero_though_another_branch_has_no_result_of_this_size(
    tmp_path: Path,
) -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        agraph (uint8[n, k] x, uint8[k, m] w, bool c) => (int32[p, q] y) {
            y = If (c) <
                then_branch = yes () => (int32[n, m] a) { a = MatMulInteger(x, w) },
                else_branch = no () => (int32[k, k] b) { b = MatMulInteger(w, x) }
            >
        }
    """)
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    full = {"x": np.full((2, 3), 2, np.uint8), "w": np.full((3, 2), 5, np.uint8)}
    empty = {"x": np.ones((2, 0), np.uint8), "w": np.ones((0, 2), np.uint8)}
    with load(tmp_path / "m.hcb") as session:
        assert session.run({**full, "c": np.array(True)})["y"].tolist() == [[30, 30]] * 2
        assert session.run({**empty, "c": np.array(True)})["y"].tolist() == [[0, 0]] * 2
        assert session.run({**empty, "c": np.array(False)})["y"].shape == (0, 0)
