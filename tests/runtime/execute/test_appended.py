"""Keys and values of earlier tokens, lengthened where they are, against numpy."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import Session, load
from heterocc.runtime.native import cpu_api

Arrays = dict[str, np.ndarray[Any, Any]]

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[b, h, n, 8] q, float[b, h, n, 8] k, float[b, h, n, 4] v, float[b, h, p, 8] keys, float[b, h, p, 4] values,
     float[4, 1] table, int64[i, 1] places, float[u, 1] updates)
    => (float[b, h, n, 4] y, float[b, h, t, 8] more_keys, float[b, h, t, 4] more_values, float[4, 1] written) {
  more_keys = Concat<axis=2>(keys, k)
  more_values = Concat<axis=2>(values, v)
  turned = Transpose<perm=[0, 1, 3, 2]>(more_keys)
  scores = MatMul(q, turned)
  shares = Softmax<axis=-1>(scores)
  y = MatMul(shares, more_values)
  written = ScatterND(table, places, updates)
}
"""
"""The last node fails if there are not as many updates as places."""

STATE = {"keys": "more_keys", "values": "more_values"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("appended") / "m.hcb"
    compile_model(onnx.parser.parse_model(TEXT), path, devices="CPU")
    return path


def feed(rng: np.random.Generator, new: int, batch: int = 1, heads: int = 2) -> Arrays:
    """Random inputs beside the state."""
    sizes = {"q": (batch, heads, new, 8), "k": (batch, heads, new, 8), "v": (batch, heads, new, 4)}
    given: Arrays = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    table, one = np.zeros((4, 1), np.float32), np.ones((1, 1), np.float32)
    return {**given, "table": table, "places": np.array([[2]]), "updates": one}


def empty(batch: int = 1, heads: int = 2) -> Arrays:
    return {"keys": np.zeros((batch, heads, 0, 8), np.float32), "values": np.zeros((batch, heads, 0, 4), np.float32)}


def expected(given: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[np.ndarray[Any, Any], Arrays]:
    """The result, and the state after it."""
    keys = np.concatenate([state["keys"], given["k"]], 2)
    values = np.concatenate([state["values"], given["v"]], 2)
    scores = given["q"] @ keys.swapaxes(2, 3)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ values, {"keys": keys, "values": values}


class Text:
    """A binding, beside the state that it should have."""

    def __init__(self, session: Session, batch: int = 1, heads: int = 2, seed: int = 0) -> None:
        self.binding = session.bind(state=STATE)
        self.rng = np.random.default_rng(seed)
        self.batch, self.heads = batch, heads
        self.first: Arrays | None = empty(batch, heads)
        self.state = self.first

    def add(self, new: int) -> None:
        """Run on so many new tokens, and check all results."""
        given = feed(self.rng, new, self.batch, self.heads)
        found = self.binding.run({**given, **(self.first or {})})["y"]
        wanted, self.state = expected(given, self.state)
        self.first = None
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        self.check()

    def check(self) -> None:
        for name, array in self.state.items():
            np.testing.assert_array_equal(self.binding.state[name], array)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a state in the next run."""
        self.first = dict(state)
        self.state = {name: np.array(array) for name, array in state.items()}

    def addresses(self) -> tuple[int, ...]:
        return tuple(array.ctypes.data for array in self.binding.state.values())


@pytest.mark.parametrize(("batch", "heads"), [(1, 2), (3, 2), (1, 1), (2, 1)])
def test_rows_are_written_after_the_earlier_ones(bundle: Path, batch: int, heads: int) -> None:
    with load(bundle, threads=2) as session:
        text = Text(session, batch, heads)
        places = []
        for new in (5, 1, 1, 3, *[1] * 60, 7, 1):
            text.add(new)
            places.append(text.addresses())
        assert len(set(places)) <= 5  # memory for 5 tokens, then for 22, 46, 94
        assert len(set(places[20:36])) == 1


def test_two_continuations_of_a_state_have_rows_of_their_own(bundle: Path) -> None:
    with load(bundle, threads=1) as session:
        one, other = Text(session), Text(session, seed=1)
        for _ in range(4):
            one.add(2)
        held = dict(one.binding.state)
        contents = {name: array.copy() for name, array in held.items()}
        other.resume(held)
        for _ in range(3):
            one.add(1)
            other.add(1)
        assert not set(one.addresses()) & set(other.addresses())
        one.resume(held)  # again from there, as after a rejected guess
        one.add(1)
        other.check()
        one.resume({name: array[:, :, :3] for name, array in one.binding.state.items()})
        one.add(2)
        one.add(1)
        one.resume({name: array[:, ::-1] for name, array in one.binding.state.items()})
        one.add(1)
        other.add(1)
        for name, array in held.items():
            np.testing.assert_array_equal(array, contents[name])
            assert not array.flags.writeable


def test_one_tensor_as_the_past_of_two_runs_is_lengthened_once(bundle: Path) -> None:
    with load(bundle, threads=1) as session:
        text = Text(session)
        for _ in range(3):
            text.add(2)
        code = session._alive().pool.chain.compiled[0]
        function, lengthened = code.function()
        assert len(lengthened) == 2
        order = [i.name for i in session.inputs]
        before, state = dict(text.binding._state), text.state
        runs = []
        for seed in (5, 6):
            given = feed(np.random.default_rng(seed), 1)
            part = session.variant.partitions[0]
            names = [session.variant.values[value].name for value in part.inputs]
            assert sorted(names) == sorted(order)
            tensors = [cpu_api.tvm_ffi.from_dlpack({**given, **before}[name]) for name in names]
            runs.append((given, [np.from_dlpack(found) for found in function(*tensors, code.params)]))
        outputs = [session.variant.values[value].name for value in part.outputs]
        for given, results in runs:
            y, after = expected(given, state)
            found = dict(zip(outputs, results, strict=True))
            np.testing.assert_allclose(found["y"], y, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(found["more_keys"], after["keys"])
            np.testing.assert_array_equal(found["more_values"], after["values"])
        text.check()


def test_results_of_runs_without_a_binding_are_arrays_of_their_own(bundle: Path) -> None:
    rng = np.random.default_rng(3)
    with load(bundle, threads=1) as session:
        text = Text(session)
        for _ in range(3):
            text.add(2)
        given = feed(rng, 1)
        results = session.run({**given, **text.binding.state})
        assert all(results[name].flags.c_contiguous for name in STATE.values())
        results["more_keys"][...] = 0
        results["more_values"][...] = 0
        text.add(1)
        again = {name: np.array(results[STATE[name]]) for name in STATE}
        found = session.run({**feed(rng, 1), **again})
        assert found["more_keys"].flags.c_contiguous


def test_a_run_that_fails_and_a_new_text(bundle: Path) -> None:
    with load(bundle, threads=1) as session:
        text = Text(session)
        for _ in range(3):
            text.add(4)
        place = text.addresses()
        with pytest.raises(HeteroccError):
            text.binding.run({**feed(text.rng, 2), "updates": np.ones((2, 1), np.float32)})
        text.check()
        text.add(1)
        assert text.addresses() == place  # the rows of the run that failed are written again
        text.binding.reset()
        text.resume(empty())
        for _ in range(3):
            text.add(4)


def test_runs_that_are_profiled_or_without_the_plug_in(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(bundle, threads=1, profile=True) as session:
        text = Text(session)
        for _ in range(4):
            text.add(3)
    monkeypatch.setattr(cpu_api, "_library", lambda: None)
    with load(bundle, threads=1) as session:
        text = Text(session)
        for _ in range(4):
            text.add(3)


def test_threads_have_texts_of_their_own(bundle: Path) -> None:
    with load(bundle, threads=1) as session:

        def write(number: int) -> None:
            text = Text(session, batch=1 + number % 2, seed=number)
            for _ in range(40):
                text.add(1 + number % 3)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(8)))


def test_memory_goes_back_with_the_last_array(bundle: Path) -> None:
    with load(bundle, threads=1) as session:

        def write(tokens: int) -> dict[str, Any]:
            text = Text(session, batch=4, heads=4)
            for _ in range(3):
                text.add(tokens)
            return dict(text.binding.state)

        write(60)
        gc.collect()
        before = cpu_api.heap_bytes()
        for _ in range(20):
            held = write(60)
        assert cpu_api.heap_bytes() <= 2 * before
        kept = {name: array.copy() for name, array in held.items()}
    gc.collect()
    for name, array in held.items():
        np.testing.assert_array_equal(array, kept[name])


READ_ELSEWHERE = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2, n, 16] q, float[2, n, 16] k, float[2, n, 16] v, float[2, p, 16] keys, float[2, p, 16] values)
    => (float[2, n, 16] y, float[2, t, 16] more_keys, float[2, t, 16] more_values, float[2, 1, 16] most) {
  more_keys = Concat<axis=1>(keys, k)
  more_values = Concat<axis=1>(values, v)
  turned = Transpose<perm=[0, 2, 1]>(more_keys)
  scores = MatMul(q, turned)
  shares = Softmax<axis=-1>(scores)
  y = MatMul(shares, more_values)
  most = ReduceMax<axes=[1]>(more_keys)
}
"""


def test_what_other_code_reads_is_joined_as_before(tmp_path: Path) -> None:
    path, rng = tmp_path / "m.hcb", np.random.default_rng(0)
    compile_model(onnx.parser.parse_model(READ_ELSEWHERE), path, devices="CPU")
    with load(path, threads=1) as session:
        _, lengthened = session._alive().pool.chain.compiled[0].function()
        assert len(lengthened) == 1  # the values
        binding = session.bind(state=STATE)
        state = {name: np.zeros((2, 0, 16), np.float32) for name in STATE}
        for step in range(6):
            given = {name: rng.standard_normal((2, 3, 16), np.float32) for name in "qkv"}
            found = binding.run({**given, **(state if step == 0 else {})})
            y, state = joined(given, state)
            np.testing.assert_allclose(found["y"], y, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(found["most"], state["keys"].max(1, keepdims=True))
            for name, array in state.items():
                np.testing.assert_array_equal(binding.state[name], array)
        assert binding.state["keys"].flags.c_contiguous
        assert not binding.state["values"].flags.c_contiguous


def joined(given: Arrays, state: Arrays) -> tuple[np.ndarray[Any, Any], Arrays]:
    keys, values = (np.concatenate([state[n], given[n[0]]], 1) for n in ("keys", "values"))
    scores = given["q"] @ keys.swapaxes(1, 2)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ values, {"keys": keys, "values": values}


REPEATED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[b, 6, n, 16] q, float[b, 2, n, 16] k, float[b, 2, n, 16] v, float[b, 2, p, 16] keys,
     float[b, 2, p, 16] values) => (float[b, 6, n, 16] y, float[b, 2, t, 16] more_keys, float[b, 2, t, 16] more_values)
<int64[1] two = {2}, int64[5] thrice = {1, 1, 3, 1, 1}, int64[4] merged = {0, 6, -1, 16}> {
  more_keys = Concat<axis=2>(keys, k)
  more_values = Concat<axis=2>(values, v)
  apart_keys = Unsqueeze(more_keys, two)
  wide_keys = Expand(apart_keys, thrice)
  all_keys = Reshape(wide_keys, merged)
  apart_values = Unsqueeze(more_values, two)
  wide_values = Expand(apart_values, thrice)
  all_values = Reshape(wide_values, merged)
  turned = Transpose<perm=[0, 1, 3, 2]>(all_keys)
  scores = MatMul(q, turned)
  shares = Softmax<axis=-1>(scores)
  y = MatMul(shares, all_values)
}
"""


def test_keys_that_are_repeated_for_several_heads_are_read_where_they_are(tmp_path: Path) -> None:
    path, rng = tmp_path / "m.hcb", np.random.default_rng(0)
    compile_model(onnx.parser.parse_model(REPEATED), path, devices="CPU")
    with load(path, threads=1) as session:
        assert len(session.variant.partitions[0].kernels) == 3  # two append, and one reads what they wrote
        binding = session.bind(state=STATE)
        state: Arrays = {name: np.zeros((2, 2, 0, 16), np.float32) for name in STATE}
        for step, new in enumerate((3, 20, 1, 1, 5)):
            given = {n: rng.standard_normal((2, 6 if n == "q" else 2, new, 16), np.float32) for n in "qkv"}
            found = binding.run({**given, **(state if step == 0 else {})})
            state = {name: np.concatenate([state[name], given[name[0]]], 2) for name in state}
            keys, values = (np.repeat(state[name], 3, 1) for name in ("keys", "values"))
            scores = given["q"] @ keys.swapaxes(2, 3)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            y = shares / shares.sum(-1, keepdims=True) @ values
            np.testing.assert_allclose(found["y"], y, rtol=1e-4, atol=1e-5)
            for name, array in state.items():
                np.testing.assert_array_equal(binding.state[name], array)
        assert not any(array.flags.c_contiguous for array in binding.state.values())
