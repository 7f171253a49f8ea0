"""The import of nested bodies: the number of simplifications of each, and the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.compiler.importer.draft.draft import bodies
from heterocc.compiler.importer.folding import simplify as onnx_simplify
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import I64, assert_close, branch, model, node, noise, op_types, run_imported, save, value

BOOL = TensorProto.BOOL


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each time that import infers the shapes of a graph or a body in order to simplify it."""
    counted: list[str] = []
    infer = onnx_simplify.infer

    def counting(*arguments: object) -> object:
        counted.append("round")
        return infer(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(onnx_simplify, "infer", counting)
    return counted


def nested_ifs(depth: int) -> onnx.ModelProto:
    def choice(level: int, output: str) -> onnx.NodeProto:
        inner = choice(level - 1, f"r{level}") if level else node("Relu", "x", "r0")
        then = branch(f"t{level}", inner, output=f"r{level}")
        other = branch(f"e{level}", node("Abs", "x", f"q{level}"), output=f"q{level}")
        return node("If", f"c{level}", output, f"if{level}", then_branch=then, else_branch=other)

    conditions = [value(f"c{level}", [], BOOL) for level in range(depth)]
    return model([choice(depth - 1, "y")], [value("x", [3]), *conditions], [value("y")])


def nested_loops(depth: int) -> onnx.ModelProto:
    def loop(level: int, source: str, output: str) -> onnx.NodeProto:
        p = f"_{level}"
        inner = loop(level - 1, "s" + p, "t" + p) if level else node("Sub", f"x s{p}", "t" + p)
        body = helper.make_graph(
            [inner, node("Identity", "go" + p, "on" + p)],
            "b" + p,
            [value("i" + p, [], I64), value("go" + p, [], BOOL), value("s" + p, [3])],
            [value("on" + p, [], BOOL), value("t" + p, [3])],
        )
        return node("Loop", f"n - {source}", output, body=body)

    return model([loop(depth - 1, "x", "y")], [value("x", [3]), value("n", [], I64)], [value("y")])


def nested_scans(depth: int) -> onnx.ModelProto:
    def scan(level: int, output: str) -> list[onnx.NodeProto]:
        p = f"_{level}"
        inner = scan(level - 1, "t" + p) if level else [node("Add", f"s{p} e{p}", "t" + p)]
        body = helper.make_graph(inner, "b" + p, [value("s" + p, [3]), value("e" + p, [1])], [value("t" + p, [3])])
        return [
            node("Scan", f"{f's_{level + 1}' if level < depth - 1 else 'x'} z", output, body=body, num_scan_inputs=1)
        ]

    return model(scan(depth - 1, "y"), [value("x", [3]), value("z", [2, 1])], [value("y")])


@pytest.mark.parametrize("build", [nested_ifs, nested_loops, nested_scans])
def test_each_of_ten_nested_bodies_is_simplified_a_few_times(
    tmp_path: Path, rounds: list[str], build: Callable[[int], onnx.ModelProto]
) -> None:
    proto = build(10)
    found = import_model(save(tmp_path, proto))
    assert op_types(found) == [proto.graph.node[0].op_type]
    graphs = 1 + sum(len(list(bodies(n))) for g in every_graph(proto.graph) for n in g.node)
    assert len(rounds) <= 3 * graphs


def every_graph(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    return [graph, *(inner for n in graph.node for b in bodies(n) for inner in every_graph(b))]


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_nested_branches_with_known_and_unknown_conditions_give_the_same_numbers(
    tmp_path: Path, rounds: list[str], outer: bool, inner: bool
) -> None:
    decided = node(
        "If",
        "yes",
        "r2",
        then_branch=branch("dt", node("Mul", "a k", "r3"), output="r3", constants={"k": noise(3, seed=1)}),
        else_branch=branch("de", node("Neg", "a", "r3"), output="r3"),
    )
    innermost = node(
        "If",
        "inner",
        "r1",
        then_branch=branch("it", decided, node("Shape", "r2", "s"), node("Reshape", "r2 s", "r4"), output="r4"),
        else_branch=branch("ie", node("Abs", "a", "r4"), output="r4"),
    )
    choose = node(
        "If",
        "outer",
        "y",
        then_branch=branch("ot", node("Relu", "x", "a"), innermost, output="r1"),
        else_branch=branch("oe", node("Sigmoid", "x", "r1"), output="r1"),
    )
    inputs = [value("x", [3]), value("outer", [], BOOL), value("inner", [], BOOL)]
    path = save(tmp_path, model([choose], inputs, [value("y")], {"yes": np.array(True)}))
    found = import_model(path)  # ONNX Runtime itself loses the result of a decided If inside a branch
    results = run_imported(found, {"x": noise(3), "outer": np.array(outer), "inner": np.array(inner)})
    a = np.maximum(noise(3), 0)
    expected = (a * noise(3, seed=1) if inner else np.abs(a)) if outer else 1 / (1 + np.exp(-noise(3)))
    assert_close(results, [expected])
    kinds = [n.op_type for g in every_graph(found.proto.graph) for n in g.node]
    assert sorted(kinds) == sorted(["If", "Relu", "If", "Mul", "Reshape", "Abs", "Sigmoid"])
    assert len(rounds) <= 20
