"""Results whose sizes depend on data, on the CPU: equal to ONNX Runtime's, for several data from one bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model, query_model
from heterocc.compiler.conformance.onnx_backend import HeteroccBackend
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.programs.split import program_of
from heterocc.compiler.lower.cpu.programs.steps import Require, walk
from heterocc.compiler.lower.stages import whole_job
from heterocc.runtime import load
from tests.compiler.lower.lowered import CPU

Feed = dict[str, Any]


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')


DETECTION = """
agraph (float[3,4] x, float[3,6] y) => (float[n,6] rows, float[k] best, int64[k] which, float[m] r)
    <float zero = {0}, int64[1] first = {0}, int64[1] last = {1}, int64[1] flat = {-1},
     int64 none = {0}, int64 one = {1}>
{
    s = ReduceMax<keepdims = 0>(x, last)
    keep = Greater(s, zero)
    places = NonZero(keep)
    index = Squeeze(places, first)
    found = Gather(y, index)
    twice = Add(found, found)
    rows = Sqrt(twice)
    all = Reshape(x, flat)
    n = Shape(places)
    k = Gather(n, last)
    best, which = TopK(all, k)
    count = Gather(n, one)
    steps = Range(none, count, one)
    f = Cast<to = 1>(steps)
    r = Exp(f)
}
"""


def _same(session: Any, reference: ort.InferenceSession, feed: Feed) -> None:
    wanted = reference.run(None, feed)
    for (output, got), expected in zip(session.run(feed).items(), wanted, strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape, output
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_rows_that_the_data_selects_are_computed_with_on_the_cpu_alone(tmp_path: Path) -> None:
    model = _model(DETECTION)
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(3)
    for signs in ([1, 1, 1], [1, -1, 1], [-1, -1, 1], [-1, -1, -1]):
        x = (numbers.random((3, 4)) + 0.1) * np.array(signs)[:, None]
        feed = {"x": x.astype(np.float32), "y": numbers.random((3, 6), np.float32)}
        _same(session, reference, feed)


CASES: dict[str, tuple[str, list[Feed]]] = {
    "Slice by computed ends and steps": (
        "agraph (float[5,6] x, int64[2] a, int64[2] b, int64[2] c, int64[2] d) => (float[n,m] y) "
        "{ s = Slice(x, a, b, c, d)  y = Neg(s) }",
        [
            {"a": [1, 5], "b": [4, -9], "c": [0, 1], "d": [2, -2]},
            {"a": [-2, 0], "b": [99, 1], "c": [-1, -2], "d": [1, 1]},
            {"a": [3, 0], "b": [1, 6], "c": [0, 1], "d": [1, 4]},
        ],
    ),
    "Pad, Tile and Expand by computed shapes": (
        "agraph (float[2,1] x, int64[4] p, int64[2] t, int64[3] e) => (float[a,b] y, float[c,d] z, float[f,g,h] w) "
        "{ y = Pad(x, p)  z = Tile(x, t)  w = Expand(x, e) }",
        [
            {"p": [1, 0, 2, 3], "t": [2, 3], "e": [3, 1, 4]},
            {"p": [0, 1, 0, 0], "t": [1, 1], "e": [1, 2, 1]},
        ],
    ),
    "reductions along computed axes": (
        "agraph (float[2,3,4] x, int64[2] a) => (float[p,q,r] y, float[n] z, float[m] l) "
        "{ y = ReduceMean(x, a)  z = ReduceMax<keepdims = 0>(x, a)  l = ReduceLogSumExp<keepdims = 0>(x, a) }",
        [{"a": [0, 1]}, {"a": [-1, 0]}, {"a": [2, 1]}],
    ),
    "Split, OneHot and ConstantOfShape by computed sizes": (
        "agraph (float[6] x, int64[3] s, int64[2] i, int64 depth, float[2] v, int64[2] d) "
        "=> (float[a] p, float[b] q, float[c] r, float[2,n] o, float[e,f] w) "
        "{ p, q, r = Split(x, s)  o = OneHot(i, depth, v)  w = ConstantOfShape(d) }",
        [
            {"s": [1, 2, 3], "i": [0, -1], "depth": 4, "v": [0, 2], "d": [2, 3]},
            {"s": [4, 1, 1], "i": [1, 1], "depth": 2, "v": [1, 0], "d": [1, 1]},
        ],
    ),
}


@pytest.mark.slow
def test_the_boxes_that_non_max_suppression_selects_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    model = _model(
        """
        agraph (float[2,40,4] b, float[2,3,40] s, int64 most) => (float[n,4] y)
            <float overlap = {0.4}, float least = {0.3}, int64[1] first = {0}, int64[1] last = {2}, int64[1] axis = {1},
             int64[1] end = {3}>
        {
            rows = NonMaxSuppression(b, s, most, overlap, least)
            batch = Slice(rows, first, axis, axis)
            box = Slice(rows, last, end, axis)
            pair = Concat<axis = 1>(batch, box)
            y = GatherND(b, pair)
        }
        """
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(1)
    for most in (0, 1, 5, 100):
        boxes = numbers.random((2, 40, 4), np.float32)
        scores = np.round(numbers.random((2, 3, 40)), 1).astype(np.float32)  # with equal ones
        _same(session, reference, {"b": boxes, "s": scores, "most": np.array(most)})


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_operators_with_computed_shapes_give_the_results_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    text, feeds = CASES[name]
    model = _model(text)
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    types = {i.name: i.type.tensor_type for i in model.graph.input}
    numbers = np.random.default_rng(5)
    for given in feeds:
        feed = {}
        for input_, kind in types.items():
            dtype = np.float32 if kind.elem_type == onnx.TensorProto.FLOAT else np.int64
            shape = [d.dim_value for d in kind.shape.dim]
            feed[input_] = np.array(given[input_], dtype) if input_ in given else numbers.random(shape, dtype)
        _same(session, reference, feed)


def test_a_shape_that_the_data_cannot_have_is_an_error_that_names_the_node(tmp_path: Path) -> None:
    model = _model("agraph (float[2,3] x, int64[2] s) => (float[a,b] y) { r = Reshape(x, s)  y = Neg(r) }")
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    x = np.ones((2, 3), np.float32)
    assert session.run({"x": x, "s": np.array([-1, 2])})["y"].shape == (3, 2)
    with pytest.raises(HeteroccError, match="cannot have the shape that it is given"):
        session.run({"x": x, "s": np.array([4, 2])})


def test_nodes_run_whose_inputs_have_sizes_computed_from_one_that_depends_on_data(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[3,4] x, bool[3] keep) => (float[n,4] y) <int64[1] flat = {-1}, int64[2] s = {-1, 4}> "
        "{ rows = Compress<axis = 0>(x, keep)  all = Concat<axis = 0>(rows, x)  vector = Reshape(all, flat) "
        "e = Exp(vector)  y = Reshape(e, s) }"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).random((3, 4), np.float32)
    for keep in ([True, False, True], [False] * 3):
        _same(session, reference, {"x": x, "keep": np.array(keep)})


def test_what_is_selected_counts_once_for_the_limit_of_a_computed_shape(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[n] x, float[1,m,1,1] y, bool[m] keep) => (int64[1,k] places, float[1,l,1,1] some, float[l] all) "
        "{ places = NonZero(x)  some = Compress<axis = 1>(y, keep)  all = Compress(y, keep) }"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False)
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {"x": np.ones(2**20 + 1, np.float32), "y": np.ones((1, 2000, 1, 1), np.float32), "keep": np.ones(2000, bool)}
    feed["keep"][7] = False
    _same(load(tmp_path / "m.hcb"), reference, feed)


def test_sums_over_no_elements_are_0_and_running_sums_of_none_write_nothing(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[3,7] x, bool[3] keep) => (float[7,7] y, float[7] s, float[n,7] t, float[n,7] u) "
        "<int64[1] first = {0}, int64 axis = {0}> "
        "{ rows = Compress<axis = 0>(x, keep)  columns = Transpose<perm = [1, 0]>(rows)  y = MatMul(columns, rows) "
        "s = ReduceSum<keepdims = 0>(rows, first)  t = CumSum(rows, axis) "
        "u = CumSum<exclusive = 1, reverse = 1>(rows, axis) }"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).random((3, 7), np.float32)
    for keep in ([True, True, True], [False] * 3, [False, True, True], [False] * 3):
        _same(session, reference, {"x": x, "keep": np.array(keep)})


def test_computed_sizes_of_0_and_the_largest_elements_along_a_dynamic_axis(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[n,m] x, bool[n] keep, int64[1] most) => (float[n,k] v, int64[n,k] i, float[n,3] w, float[m] y) "
        "<int64[1] three = {3}, int64[1] first = {0}> "
        "{ v, i = TopK(x, most)  w, j = TopK<largest = 0>(x, three) "
        "rows = Compress<axis = 0>(x, keep)  y = ReduceMean<keepdims = 0>(rows, first) }"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(2)
    for keep, columns, most in (([True, False, True], 7, 5), ([False] * 2, 3, 0), ([True], 400, 400)):
        x = np.round(numbers.random((len(keep), columns)), 2).astype(np.float32)  # with equal ones
        _same(session, reference, {"x": x, "keep": np.array(keep), "most": np.array([most])})
    with pytest.raises(HeteroccError, match="dimension 'm' of input 'x' must be 3 or more"):
        session.run({"x": x[:, :2], "keep": np.array([True]), "most": np.array([1])})


def test_a_computed_size_of_0_that_would_copy_a_size_of_the_data_is_an_error(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[2,4,5] x, bool[4] keep) => (float[a,b] y) <int64[1] one = {1}, int64[1] rest = {-1}> "
        "{ some = Compress<axis = 1>(x, keep)  s = Shape(some)  n = Gather(s, one)  t = Concat<axis = 0>(n, rest) "
        "r = Reshape(some, t)  y = Neg(r) }"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    x = np.ones((2, 4, 5), np.float32)
    assert session.run({"x": x, "keep": np.array([True, False, True, True])})["y"].shape == (3, 10)
    with pytest.raises(HeteroccError, match="a computed size is 0 with these inputs"):
        session.run({"x": x, "keep": np.array([False] * 4)})


def test_the_query_says_that_a_gpu_does_not_take_sizes_that_depend_on_data() -> None:
    found = query_model(_model("agraph (float[2,3] x) => (int64[2,n] y) { y = NonZero(x) }"), "OPENCL,CPU")
    node = found.graph.nodes[0].name
    assert found[node] == "CPU"
    assert "known only at run time" in (found.reason(node, "OPENCL") or "")


def test_a_convolution_of_1_x_1_runs_on_a_map_whose_size_depends_on_data(tmp_path: Path) -> None:
    # Its code for single numbers, for maps without elements, asked for masks of one lane.
    model = _model(
        """agraph (float[1,64,h,w] x, int64[2] sizes) => (float[1,64,p,q] y)
           <int64[2] first = {0, 0}, int64[2] axes = {2, 3}>
           { part = Slice(x, first, sizes, axes) c = Conv(part, weight) y = Relu(c) }"""
    )
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((64, 64, 1, 1), np.float32), "weight")
    model.graph.initializer.append(weight)
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for sizes in ([8, 5], [1, 1], [9, 7]):
        _same(session, reference, {"x": rng.random((1, 64, 9, 7), np.float32), "sizes": np.array(sizes)})


def test_sizes_that_depend_on_data_stand_for_others_where_they_are_1(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[6] x, bool[6] c, bool[6] d, float[3,1] w) => (float[3,n] y, float[m] z, float[k] u) "
        "{ s = Compress<axis = 0>(x, c)  t = Compress<axis = 0>(x, d)  sum = Sub(s, t)  y = Mul(w, sum) "
        "b = Less(s, t)  z = Where(b, s, t)  three = Constant<value_floats = [1.0, 2.0, 3.0]>()  u = Max(three, s, t) }"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {"x": np.arange(6, dtype=np.float32) ** 2, "w": np.array([[1], [-1], [2]], np.float32)}
    for left, right in ((3, 3), (1, 3), (3, 1), (1, 1)):
        _same(session, reference, {**feed, "c": np.arange(6) < left, "d": np.arange(6) >= 6 - right})
    with pytest.raises(HeteroccError, match="the sizes of its inputs differ"):
        session.run({**feed, "c": np.arange(6) < 2, "d": np.arange(6) < 3})
    with pytest.raises(HeteroccError, match="the sizes of its inputs differ"):
        session.run({**feed, "c": np.arange(6) < 2, "d": np.arange(6) < 2})


def test_a_dimension_along_which_elements_are_gathered_is_not_empty(tmp_path: Path) -> None:
    model = _model("agraph (float[n] x) => (float y) <int64 zero = {0}> { f = Gather(x, zero) y = Neg(f) }")
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    with pytest.raises(HeteroccError, match="dimension 'n' of input 'x' must be 1 or more, got 0"):
        load(tmp_path / "m.hcb").run({"x": np.zeros(0, np.float32)})


def test_a_slice_of_a_computed_size_is_summed(tmp_path: Path) -> None:
    model = _model(
        "agraph (float[n,4] x, int64[1] s, int64[1] e) => (float[4] y) <int64[1] first = {0}> "
        "{ t = Slice(x, s, e)  y = ReduceSum<keepdims = 0>(t, first) }"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    session = load(tmp_path / "m.hcb")
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for start, end in ((0, 1), (1, 5), (2, 2)):
        feed = {"x": np.arange(20, dtype=np.float32).reshape(5, 4), "s": np.array([start]), "e": np.array([end])}
        _same(session, reference, feed)


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ("u = Conv(t, k)  v = Conv(u, k)  y = Conv(v, k)", 1),
        ("v = If(b) <then_branch = g () => (float[1,8,p] o) { o = Conv(t, k) }, "
         "else_branch = h () => (float[1,8,q] o) { o = Neg(t) }>  y = Conv(v, k)", 2),
    ],
)  # fmt: skip
def test_a_size_that_depends_on_data_is_required_once_on_each_way(nodes: str, wanted: int) -> None:
    text = f"agraph (float[1,8,w] x, bool[w] c, bool b) => (float[1,8,m] y) {{ t = Compress<axis=2>(x, c)  {nodes} }}"
    model = _model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8, 1), np.float32), "k"))
    program = program_of(whole_job(import_model(model, keep_dims=True, assume=True), CPU), writes=False)
    assert sum(isinstance(step, Require) for step in walk(program.steps)) == wanted
    compiled = HeteroccBackend.prepare(model, "CPU", cpu_variant=False)
    with compiled:
        for branch in (True, False):
            with pytest.raises(HeteroccError, match="dimension 2 of 'X' must be 1 or more"):
                compiled.run({"x": np.ones((1, 8, 3), np.float32), "c": np.zeros(3, bool), "b": np.array(branch)})
