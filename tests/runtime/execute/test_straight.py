"""Code for dynamic sizes, run without a virtual machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
import tvm_ffi
from tvm import relax, te, tirx

from heterocc.compiler import compile_model
from heterocc.compiler.lower.converters import registry
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of
from heterocc.runtime import Session, load
from heterocc.runtime.native import cpu_api

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 4] x, int64[k] rows) => (float[n, 4] y, float[m, 4] picked, float[2, l] flat, float[n, 4] same)
<float[4, 2] w1 = {1.0, 2.0, 0.0, 1.0, 0.5, 1.0, 3.0, 1.0}, float[2, 4] w2 = {1.0, 1.0, 1.0, 4.0, 0.0, 2.0, 1.0, 1.0},
 int64[2] two = {2, -1}> {
  b = MatMul(x, w1)
  a = MatMul(b, w2)
  y = Relu(a)
  picked = Gather(y, rows)
  both = Concat<axis=0>(a, x)
  flat = Reshape(both, two)
  same = Identity(x)
}
"""

LOOPS = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 4] x, float[4] s, int64 count)
=> (float[4] state, float[n, 4] sums, float[4] twice, float[m, 4] trace, int64[2, p] places)
<bool yes = {1}> {
  state, sums = Scan <num_scan_inputs = 1,
                      body = rows (float[4] before, float[4] row) => (float[4] after, float[4] sum) {
    after = Add(before, row)
    sum = Mul(after, row)
  }> (s, x)
  turned, trace = Loop <body = turns (int64 i, bool on, float[4] a) => (bool more, float[4] b, float[4] c) {
    more = Identity(on)
    number = Cast <to = 1> (i)
    b = Add(a, number)
    c = Neg(b)
  }> (count, yes, s)
  places = NonZero(sums)
  total = ReduceSum <keepdims = 0> (turned)
  limit = Constant <value_float = 10.0> ()
  large = Greater(total, limit)
  twice = If (large) <
    then_branch = then () => (float[4] t) { t = Neg(turned) },
    else_branch = otherwise () => (float[4] e) { e = Add(turned, turned) }
  >
}
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("straight") / "m.hcb"
    compile_model(onnx.parser.parse_model(TEXT), path, devices="CPU")
    return path


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each function that is loaded needs no machine."""
    found: list[bool] = []
    original = cpu_api.straight

    def recorded(executable: Any, name: str, weights: Any, machine: Any) -> Any:
        function, lengthened = original(executable, name, weights, machine)
        found.append(function is not machine)
        return function, lengthened

    monkeypatch.setattr(cpu_api, "straight", recorded)
    yield found
    assert found
    assert all(found)


def expected(x: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    graph = onnx.parser.parse_model(TEXT).graph
    first, second, _ = (onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer)
    a = x @ first @ second
    y = np.maximum(a, 0)
    return {"y": y, "picked": y[rows], "flat": np.concatenate([a, x]).reshape(2, -1), "same": x}


def feed(n: int, k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {"x": rng.standard_normal((n, 4), np.float32), "rows": rng.integers(0, n, k)}


def check(session: Session, n: int, k: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    given = feed(n, k)
    results, wanted = session.run(given), expected(**given)
    for name, value in wanted.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    return results, wanted


def test_runs_of_several_sizes_compute_what_they_should(bundle: Path, straight: list[bool]) -> None:
    with load(bundle, threads=1) as session:
        held = [check(session, n, k) for n, k in ((3, 2), (50, 7), (1, 1), (3, 9), (3, 2))]
    # Results own their memory: later runs and the end of the session leave them as they are.
    for results, wanted in held:
        for name, value in wanted.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-5)


def test_memory_of_runs_is_given_back(bundle: Path, straight: list[bool]) -> None:
    with load(bundle, threads=1) as session:
        check(session, 4000, 2)
        before = cpu_api.heap_bytes()
        for _ in range(50):
            check(session, 4000, 2)
        assert cpu_api.heap_bytes() <= 2 * before


def test_inputs_that_do_not_fit_reach_the_machine_which_says_so(bundle: Path, straight: list[bool]) -> None:
    with load(bundle, threads=1) as session:
        code = session._alive().pool.chain.compiled[0]
        function, _ = code.function()
        for x, reason in ((np.zeros((3, 5), np.float32), "match_cast error"), (np.zeros((3, 4)), "expect Tensor with")):
            rows = tvm_ffi.from_dlpack(np.zeros(1, np.int64))
            with pytest.raises((RuntimeError, ValueError), match=reason):
                function(tvm_ffi.from_dlpack(x), rows, code.params)
        check(session, 3, 2)


@pytest.mark.parametrize("dims", [{}, {"n": 6}], ids=["dynamic", "fixed"])
def test_loops_and_branches_need_no_machine(dims: dict[str, int], straight: list[bool], tmp_path: Path) -> None:
    compile_model(onnx.parser.parse_model(LOOPS), tmp_path / "m.hcb", devices="CPU", dims=dims)
    rng = np.random.default_rng(1)
    with load(tmp_path / "m.hcb", threads=1) as session:
        for n, count in ((6, 2), (6, 9), *(() if dims else ((1, 0), (40, 3)))):
            x, s = rng.standard_normal((n, 4), np.float32), rng.standard_normal(4, np.float32)
            x[n // 2 :, 1] = 0
            results = session.run({"x": x, "s": s, "count": np.array(count)})
            sums = s + np.cumsum(x, axis=0)
            turned = s + sum(range(count))
            trace = -s - np.cumsum(np.arange(count)).reshape(-1, 1)
            np.testing.assert_allclose(results["trace"], trace.reshape(-1, 4), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(results["places"], np.nonzero(results["sums"]))
            np.testing.assert_allclose(results["state"], sums[-1], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(results["sums"], sums * x, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(
                results["twice"], -turned if turned.sum() > 10 else turned * 2, rtol=1e-5, atol=1e-5
            )


def test_memory_of_loops_is_given_back(straight: list[bool], tmp_path: Path) -> None:
    compile_model(onnx.parser.parse_model(LOOPS), tmp_path / "m.hcb", devices="CPU")
    x, s = np.ones((3000, 4), np.float32), np.ones(4, np.float32)
    with load(tmp_path / "m.hcb", threads=1) as session:
        session.run({"x": x, "s": s, "count": np.array(1000)})
        before = cpu_api.heap_bytes()
        for _ in range(20):
            session.run({"x": x, "s": s, "count": np.array(1000)})
        assert cpu_api.heap_bytes() <= 2 * before


def _times_a_number_of_sizes(ctx: Context, x: relax.Expr) -> relax.Expr:
    """`x` [n, 4] times 2 * n + 1, of a kernel that takes this number as an argument."""
    rows, columns = dims_of(x)
    number, own = tirx.Var("number", "int64"), tirx.Var("rows", "int64")
    given = te.placeholder([own, columns], "float32", "given")
    product = te.compute(given.shape, lambda i, j: given[i, j] * tirx.Cast("float32", number), "product")
    kernel = te.create_prim_func([given, number, product]).without_attr("global_symbol").with_attr("op_pattern", 8)
    return ctx.bb.emit(relax.call_tir(ctx.bb.add_func(kernel, "times"), [x, 2 * rows + 1], x.ty))


def test_numbers_that_kernels_take_are_computed_without_a_machine(
    straight: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._CONVERTERS, ("", "Softsign"), _times_a_number_of_sizes)
    text = TEXT.replace("Relu", "Softsign")
    compile_model(onnx.parser.parse_model(text), tmp_path / "m.hcb", devices="CPU", check=False, measure=False)
    with load(tmp_path / "m.hcb", threads=1) as session:
        for n in (3, 50, 1):
            given = feed(n, 2)
            results = session.run(given)
            first, second, _ = map(onnx.numpy_helper.to_array, onnx.parser.parse_model(TEXT).graph.initializer)
            wanted = given["x"] @ first @ second * (2 * n + 1)
            np.testing.assert_allclose(results["y"], wanted, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(results["picked"], wanted[given["rows"]], rtol=1e-5, atol=1e-5)


def test_a_weight_may_get_the_shape_of_an_input(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[n, m] x) => (float[n, m] y) <float[2, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
      sizes = Shape(x)
      turned = Reshape(w, sizes)
      y = Add(x, turned)
    }
    """
    compile_model(onnx.parser.parse_model(text), tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        for shape in ((2, 3), (6, 1)):
            found = session.run({"x": np.zeros(shape, np.float32)})["y"]
            np.testing.assert_array_equal(found, np.arange(1, 7, dtype=np.float32).reshape(shape))
