"""State that is lengthened where it is by native runs, from a feed to results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load
from heterocc.runtime.native import cpu_api
from tests.runtime.execute import test_appended_grouped
from tests.runtime.execute.native_runs import runs_of

pytestmark = pytest.mark.skipif(cpu_api.problem() is not None, reason="the CPU plug-in was not built")

KEYS = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[b, h, n, 8] q, float[b, h, n, 8] k, float[b, h, p, 8] keys)
    => (float[b, h, n, 8] y, float[b, h, t, 8] more) {
  more = Concat<axis=2>(keys, k)
  turned = Transpose<perm=[0, 1, 3, 2]>(more)
  scores = MatMul(q, turned)
  shares = Softmax<axis=-1>(scores)
  y = MatMul(shares, more)
}
"""
BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[b, h, n, 8] q, float[b, h, n, 8] k, float[b, h, p, 8] keys, bool[1] cached)
    => (float[b, h, n, 8] y, float[b, h, t, 8] more) {
  y, more = If (cached) <
    then_branch = later () => (float[b, h, n, 8] y1, float[b, h, t, 8] more1) {
      more1 = Concat<axis=2>(keys, k)
      turned1 = Transpose<perm=[0, 1, 3, 2]>(more1)
      scores1 = MatMul(q, turned1)
      shares1 = Softmax<axis=-1>(scores1)
      y1 = MatMul(shares1, more1)
    },
    else_branch = first () => (float[b, h, n, 8] y2, float[b, h, n, 8] more2) {
      more2 = Identity(k)
      turned2 = Transpose<perm=[0, 1, 3, 2]>(more2)
      scores2 = MatMul(q, turned2)
      shares2 = Softmax<axis=-1>(scores2)
      y2 = MatMul(shares2, more2)
    }
  >
}
"""
PASSED_ON = KEYS.replace("=> (", "=> (float[b, h, n, 8] same, ").replace(") {", ") {\n  same = Identity(q)", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("natively")


@pytest.fixture(scope="module")
def grouped(folder: Path) -> Path:
    path = folder / "grouped.hcb"
    compile_model(test_appended_grouped.Form().model(), path, devices="CPU")
    return path


@pytest.fixture(scope="module")
def joined(folder: Path) -> Path:
    path = folder / "joined.hcb"
    compile_model(onnx.parser.parse_model(KEYS), path, devices="CPU")
    return path


@pytest.mark.parametrize("batch", [1, 2])
def test_each_token_of_grouped_queries_is_a_native_run(
    grouped: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(grouped, threads=1) as session:
        seen = runs_of(session, monkeypatch)
        text = test_appended_grouped.Text(session, batch)
        places = []
        for new in (5, *[1] * 30):
            text.add(new)
            places.append(text.addresses())
        assert seen == [True] * 31
        assert len(set(places)) <= 4
        if batch == 2:
            text.add(1, short=2)  # rows of the past are copied
            text.add(1)
            assert seen == [True] * 33


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 3)])  # without gaps between heads, and with
def test_each_token_after_a_join_is_a_native_run(
    joined: Path, batch: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(joined, threads=1) as session:
        seen = runs_of(session, monkeypatch)
        binding = session.bind(state={"keys": "more"})
        rng = np.random.default_rng(heads)
        keys, places = np.zeros((batch, heads, 0, 8), np.float32), []
        past = {"keys": keys}
        for new in (5, *[1] * 30):
            q, k = rng.standard_normal((2, batch, heads, new, 8), np.float32)
            binding.run({"q": q, "k": k, **past})
            past, keys = {}, np.concatenate([keys, k], 2)
            np.testing.assert_array_equal(binding.state["keys"], keys)
            places.append(binding.state["keys"].ctypes.data)
        assert seen == [True] * 31
        assert len(set(places)) <= 4


@pytest.mark.parametrize("heads", [1, 2])
def test_results_of_a_run_on_the_state_of_a_binding_are_arrays_of_their_own(joined: Path, heads: int) -> None:
    with load(joined, threads=1) as session:
        binding = session.bind(state={"keys": "more"})
        new = np.ones((1, heads, 1, 8), np.float32)
        binding.run({"q": new, "k": new, "keys": np.zeros((1, heads, 0, 8), np.float32)})
        for _ in range(3):
            binding.run({"q": new, "k": new})
        found = session.run({"q": new, "k": new, **binding.state})["more"]
        assert found.flags.c_contiguous
        assert found.ctypes.data != binding.state["keys"].ctypes.data
        found[...] = 0
        np.testing.assert_array_equal(binding.state["keys"], np.ones((1, heads, 4, 8), np.float32))


def test_a_past_that_is_read_only_or_has_gaps_is_right_without_a_binding(
    joined: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 2, 1, 8), np.float32)
    wide = rng.standard_normal((1, 2, 9, 8), np.float32)
    fixed = wide.copy()
    fixed.flags.writeable = False
    with load(joined, threads=1) as session:
        seen = runs_of(session, monkeypatch)
        for past in (fixed, wide, wide[:, :, :5], wide[:, ::-1]):
            found = session.run({"q": q, "k": k, "keys": past})["more"]
            np.testing.assert_array_equal(found, np.concatenate([past, k], 2))
        assert seen == [True, True, False, False]


def test_rows_are_appended_once_if_a_result_is_an_input(folder: Path) -> None:
    path = folder / "passed_on.hcb"
    compile_model(onnx.parser.parse_model(PASSED_ON), path, devices="CPU")
    with load(path, threads=1) as session:
        binding = session.bind(state={"keys": "more"})
        new = np.ones((1, 2, 1, 8), np.float32)
        past = {"keys": np.zeros((1, 2, 0, 8), np.float32)}
        places = []
        for _ in range(12):
            found = binding.run({"q": new, "k": new, **past})
            np.testing.assert_array_equal(found["same"], new)
            past = {}
            places.append(binding.state["keys"].ctypes.data)
        assert len(set(places[2:])) == 1


def test_each_token_of_a_decoder_with_a_branch_for_the_first_is_a_native_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged decoder, as optimum writes it: its rows are copied."""
    compile_model(onnx.parser.parse_model(BRANCHES), folder / "branches.hcb", devices="CPU")
    rng = np.random.default_rng(5)
    with load(folder / "branches.hcb", threads=1) as session:
        seen = runs_of(session, monkeypatch)
        keys = np.zeros((1, 2, 0, 8), np.float32)
        for new in (4, 1, 1, 3):
            q, k = (rng.standard_normal((1, 2, new, 8)).astype(np.float32) for _ in range(2))
            found = session.run({"q": q, "k": k, "keys": keys, "cached": np.array([keys.shape[2] > 0])})
            keys = np.concatenate([keys, k], 2)
            shares = np.exp(q @ keys.swapaxes(2, 3))
            np.testing.assert_array_equal(found["more"], keys)
            np.testing.assert_allclose(found["y"], shares / shares.sum(-1, keepdims=True) @ keys, rtol=1e-4, atol=1e-5)
        assert seen == [True] * 4
