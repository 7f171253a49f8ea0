"""Bundles that are one ONNX Runtime session: runs pass the caller's arrays to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import Session, load
from heterocc.runtime.execute.chain import Context
from tests.compiler.small import save


def session_of(tmp_path: Path, **options: Any) -> Session:
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"a": ["n", 4], "b": ["n", 4]}, {"y": ["n", 4], "s": ["n", 4]})
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="ORT", **options)
    return load(tmp_path / "m.hcb", threads=1)


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that went by the chain."""
    found: list[str] = []
    execute = Context.execute

    def counted(self: Context) -> None:
        found.append("run")
        execute(self)

    monkeypatch.setattr(Context, "execute", counted)
    return found


def feed(rows: int, more: int = 0) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(rows)
    a, b = (numbers.standard_normal((n, 4)).astype(np.float32) for n in (rows, rows + more))
    return {"a": a, "b": b}


def test_runs_of_shapes_that_were_right_before_need_no_chain(tmp_path: Path, chains: list[str]) -> None:
    with session_of(tmp_path) as session:
        chains.clear()  # of the check of the compile, if no cache had its verdict
        for rows, expected in ((2, 1), (2, 1), (3, 2), (3, 2), (2, 2)):
            given = feed(rows)
            found = session.run(given)
            np.testing.assert_allclose(found["y"], np.maximum(given["a"] + given["b"], 0), rtol=1e-6)
            np.testing.assert_allclose(session.run(["s"], given)[0], given["a"] + given["b"], rtol=1e-6)
            chains.pop()  # single outputs are the chain's
            assert (list(found), len(chains)) == (["y", "s"], expected)


def test_runs_of_float64_need_no_chain(tmp_path: Path, chains: list[str]) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="ORT")
    with load(tmp_path / "m.hcb") as session:
        session.run({"x": np.ones(3)})
        chains.clear()
        np.testing.assert_array_equal(session.run({"x": np.ones(3)})["y"], -np.ones(3))
        assert not chains


def test_runs_whose_results_are_texts_need_no_chain(tmp_path: Path, chains: list[str]) -> None:
    labels = helper.make_tensor("labels", TensorProto.STRING, [3], [b"cat", b"dog", "Öl".encode()])
    x, y = (
        helper.make_tensor_value_info(n, t, ["n"]) for n, t in (("x", TensorProto.INT64), ("y", TensorProto.STRING))
    )
    graph = helper.make_graph([helper.make_node("Gather", ["labels", "x"], ["y"])], "g", [x], [y], [labels])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="ORT")
    with load(tmp_path / "m.hcb") as session:
        first = session.run({"x": np.array([2, 0])})["y"]
        chains.clear()
        again = session.run({"x": np.array([2, 0])})["y"]
        assert not chains
    assert first.dtype == again.dtype == object
    assert list(first) == list(again) == ["Öl", "cat"]


def test_what_a_session_does_not_refuse_is_refused_by_the_chain_each_time(tmp_path: Path) -> None:
    with session_of(tmp_path, dims={"n": (1, 8)}) as session:
        session.run(feed(2))
        for _ in range(2):
            with pytest.raises(HeteroccError, match="dimension 'n' is 2 in 'a' and 1 in 'b'"):
                session.run({"a": feed(2)["a"], "b": feed(1)["b"]})  # ONNX Runtime would broadcast
            with pytest.raises(HeteroccError):
                session.run(feed(9))


def test_feeds_that_need_conversion_are_converted(tmp_path: Path) -> None:
    with session_of(tmp_path) as session:
        given = feed(2)
        first = session.run(given)["y"]
        swapped = given["a"].astype(">f4")
        np.testing.assert_array_equal(session.run({"a": swapped, "b": given["b"]})["y"], first)
        wide = np.empty((2, 8), np.float32)
        wide[:, ::2] = given["a"]
        np.testing.assert_array_equal(session.run({"a": wide[:, ::2], "b": given["b"]})["y"], first)
        np.testing.assert_array_equal(session.run([given["a"], given["b"]])["y"], first)


def test_a_run_that_fails_in_the_session_is_reported_by_the_chain(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    ends = [("x", TensorProto.FLOAT, [3, 2]), ("i", TensorProto.INT64, [1]), ("y", TensorProto.FLOAT, [1, 2])]
    x, i, y = (helper.make_tensor_value_info(*end) for end in ends)
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x, i], [y])), tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="ORT", check=False)
    with load(tmp_path / "m.hcb") as session:
        data = np.arange(6, dtype=np.float32).reshape(3, 2)
        for _ in range(2):
            np.testing.assert_array_equal(session.run({"x": data, "i": np.array([1])})["y"], data[1:2])
            with pytest.raises(HeteroccError, match="out of data bounds"):
                session.run({"x": data, "i": np.array([7])})


def test_the_number_of_remembered_shapes_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterocc.runtime.runs.MOST_SEEN", 2)
    with session_of(tmp_path) as session:
        for rows in (1, 2, 3, 4, 1, 2):
            given = feed(rows)
            np.testing.assert_allclose(session.run(given)["s"], given["a"] + given["b"], rtol=1e-6)


def test_a_run_leaves_the_threads_mode_for_denormal_numbers_as_it_was(tmp_path: Path) -> None:
    tiny = np.full((2, 4), 1e-40, np.float32)
    with session_of(tmp_path) as session:
        for _ in range(3):
            assert not session.run({"a": tiny, "b": tiny})["s"].any()
            assert (tiny + tiny).all()


def test_results_are_new_arrays(tmp_path: Path) -> None:
    with session_of(tmp_path) as session:
        first = session.run(feed(2))["y"]
        before = first.copy()
        session.run({name: array + 1 for name, array in feed(2).items()})
        np.testing.assert_array_equal(first, before)
