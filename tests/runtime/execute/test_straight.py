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

from heterocc.compiler.driver import compile_model
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
