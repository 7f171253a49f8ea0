"""A small model does not make a huge run: what a compile runs is known or bounded before it begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from heterocc.artifacts.errors import InputError
from heterocc.compiler.checking import run_memory
from heterocc.compiler.checking.as_given import require_same_meaning
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.checking.run_memory import limit_of
from heterocc.compiler.checking.vectors import find_vectors
from heterocc.compiler.importer.estimates import work
from heterocc.compiler.importer.inputs.texts import longest_text, with_texts
from heterocc.compiler.importer.onnx_tools.infer import infer_onnx
from heterocc.compiler.importer.onnx_tools.propagation import MAX_LISTED, listed, listed_by_onnx
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import model, node, save, value
from tests.fresh_process import fresh


def doubling(times: int) -> list[onnx.NodeProto]:
    """Nodes that double a vector `s0`."""
    return [node("Concat", f"s{i} s{i}", f"s{i + 1}", axis=0) for i in range(times)]


def growing_loop(turns: int, operator: str, kind: int, **attributes: int) -> onnx.ModelProto:
    """A Loop whose state doubles in each turn."""
    body = onnx.helper.make_graph(
        [node("Identity", "c", "c2"), node(operator, "s s", "s2", **attributes)],
        "body",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("s", [None], kind)],
        [value("c2", [], TensorProto.BOOL), value("s2", [None], kind)],
    )
    loop = onnx.helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)
    return model([loop], [value("x", [3], kind)], [value("y", [None], kind)], {"turns": np.array(turns)}, opset=20)


@pytest.mark.parametrize("size", [1 << 23, 1 << 40])
def test_a_run_of_known_sizes_that_is_large_for_its_model_is_refused_before_it(size: int) -> None:
    nodes = [node("ConstantOfShape", "shape", "zeros"), node("Add", "x zeros", "y")]
    proto = model(nodes, [value("x", [1])], [value("y", [None])], {"shape": np.array([8, size])})
    with pytest.raises(InputError, match=r"a run needs \d+ bytes for its values, more than the limit of 2684\d+ bytes"):
        find_vectors(import_model(proto), None, 0)


def test_a_run_that_computes_much_from_constants_alone_is_made_only_on_given_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_WORK", 0)
    monkeypatch.setattr(work, "_WORK_PER_WEIGHT", 4)  # less than for one of the products
    nodes = [node("MatMul", "w w", "w2"), node("MatMul", "w2 w2", "w4"), node("MatMul", "x w4", "y")]
    weight = np.eye(64, dtype=np.float32)[::-1]
    imported = import_model(model(nodes, [value("x", [2, 64])], [value("y", [2, 64])], {"w": weight}))
    assert len(imported.graph.nodes) == 3
    with pytest.raises(InputError, match="each run computes more from constants alone than a compile may"):
        find_vectors(imported, None, 0)
    x = np.random.default_rng(0).standard_normal((2, 64), np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    np.testing.assert_array_equal(find_vectors(imported, tmp_path / "x.npz", 0).outputs["y"], x)


def test_a_run_whose_sizes_only_it_knows_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_memory, "UNKNOWN_BYTES", 1 << 24)
    imported = import_model(growing_loop(30, "Concat", TensorProto.FLOAT, axis=0))
    with pytest.raises(InputError, match=r"a run needs more than 167\d+ bytes for its values at a time"):
        find_vectors(imported, None, 0)
    few = import_model(growing_loop(4, "Concat", TensorProto.FLOAT, axis=0))
    assert find_vectors(few, None, 0).outputs["y"].shape == (48,)


def test_results_of_a_run_that_are_too_large_to_compare_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_memory, "PLAIN_BYTES", 1 << 12)
    imported = import_model(growing_loop(12, "Concat", TensorProto.FLOAT, axis=0))
    with pytest.raises(InputError, match="a run returns 49152 bytes, more than the limit"):
        find_vectors(imported, None, 0)


def test_a_limit_of_one_session_is_not_that_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = import_model(growing_loop(16, "Concat", TensorProto.FLOAT, axis=0))
    feed = feed_for(imported, None, 0)
    ample = Reference(imported, ["y"], limit=limit_of(imported, feed, drawn=True))
    monkeypatch.setattr(run_memory, "UNKNOWN_BYTES", 1 << 12)
    scarce = Reference(imported, ["y"], limit=limit_of(imported, feed, drawn=True))
    with pytest.raises(InputError, match="a run needs more than"):
        scarce.run(feed)
    assert ample.run(feed)["y"].size == 3 << 16


def test_the_import_is_not_compared_if_that_would_take_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Expand", "x big", "large"), node("Shape", "large", "dims"), node("Cast", "dims", "sizes", to=1)]
    nodes += [node("ReduceMax", "sizes", "most", keepdims=0), node("Mul", "x most", "y")]
    proto = model(nodes, [value("x", [1])], [value("y", [1])], {"big": np.array([1 << 10, 1 << 14])}, opset=17)
    monkeypatch.setattr("heterocc.compiler.checking.as_given.bounded_bytes", lambda known: 1 << 24)
    imported = import_model(proto)
    found = find_vectors(imported, None, 0)
    reason = require_same_meaning(imported, found.inputs, found.outputs)
    assert reason is not None
    assert "more memory than a run may have" in reason


def test_texts_are_bounded_by_their_number_and_their_length() -> None:
    joins = [node("StringConcat", f"s{i} s{i}", f"s{i + 1}") for i in range(40)]
    graph = model(joins, [value("s0", [1], TensorProto.STRING)], [value("s40", [1], TensorProto.STRING)]).graph
    longest = longest_text(graph, {"s0": np.array(["ab"], object)})
    assert longest == 2 << 40
    with pytest.raises(InputError, match="texts of 2199023255552 characters"):
        with_texts(1 << 30, longest)
    assert with_texts(1 << 30, 100) == 1 << 30
    assert with_texts(1 << 30, 1 << 20) < 1 << 15
    looped = growing_loop(40, "StringConcat", TensorProto.STRING).graph
    with pytest.raises(InputError, match="no limit of memory holds for these"):
        with_texts(1 << 30, longest_text(looped, {"x": np.array(["ab"], object)}))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64])
def test_onnx_does_not_list_the_elements_of_long_vectors(kind: int) -> None:
    unknown = [node("NonZero", "s0", "places"), node("ReduceSum", "s28", "y", keepdims=0)]
    proto = model([*doubling(28), *unknown], [value("s0", [3], kind)], [value("y", [], kind)], opset=17)
    infer_onnx(proto, "m")  # gigabytes, and minutes
    typed = onnx.shape_inference.infer_shapes(proto)
    assert listed(typed.graph) == 0
    assert listed_by_onnx(typed.graph) > MAX_LISTED


PROGRAM = """
from heterocc.compiler import compile_model
from tests.fresh_process import peak
report = compile_model({model!r}, {output!r}, devices={devices!r})
print(peak() >> 10, report.size)
print(*report.warnings)
"""


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["CPU,ORT", "ORT"])
@pytest.mark.parametrize("kind", ["doubled", "range", "texts"])
def test_a_small_model_is_compiled_in_little_memory(tmp_path: Path, devices: str, kind: str) -> None:
    if kind == "doubled":
        nodes = [node("Shape", "x", "s0"), *doubling(25), node("ReduceSum", "s25", "y", keepdims=0)]
        proto = model(nodes, [value("x", [1, 3])], [value("y", None, TensorProto.INT64)], opset=17)
    elif kind == "range":
        nodes = [node("Range", "a b c", "r"), node("ReduceMax", "r", "most", keepdims=0), node("Mul", "x most", "y")]
        ends = {"a": np.array(0), "b": np.array(1 << 31), "c": np.array(1)}
        proto = model(nodes, [value("x", [3], TensorProto.INT64)], [value("y", [3], TensorProto.INT64)], ends, opset=17)
    else:
        if devices == "CPU,ORT":
            pytest.skip("the CPU has no texts")
        nodes = [node("Tile", "text times", "many"), node("Identity", "many", "y"), node("Identity", "x", "z")]
        constants = {"text": np.array(["a" * 100_000], object), "times": np.array([1 << 17])}
        results = [value("y", None, TensorProto.STRING), value("z", [3])]
        proto = model(nodes, [value("x", [3])], results, constants, opset=17)
    path = save(tmp_path, proto)
    program = PROGRAM.format(model=str(path), output=str(tmp_path / "m.hcb"), devices=devices)
    first, *rest = fresh(program).splitlines()
    megabytes, size = map(int, first.split())
    assert megabytes < 1500
    assert size < 50 << 20
    assert "no partition is checked" in " ".join(rest)
