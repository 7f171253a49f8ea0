"""Small models that ask for much memory or time: import answers with little of either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.estimates.work import MAX_GROWTH_BYTES
from heterocc.compiler.importer.operators.functions import _called_by
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.reading import read
from tests.compiler.onnx_build import I64, branch, imported_like, model, node, noise, op_types, save, value
from tests.fresh_process import fresh

LENGTH = 2**28
BOOL = TensorProto.BOOL


def doubled(op_type: str, times: int, **attributes: Any) -> list[onnx.NodeProto]:
    """Nodes that make s1 of s0 twice, s2 of s1 twice and so on."""
    return [node(op_type, f"s{i} s{i}", f"s{i + 1}", **attributes) for i in range(times)]


HUGE = {
    "a rank by a graph input": model(
        [node("Reshape", "x s", "y")], [value("x", [3]), value("s", [LENGTH], I64)], [value("y")]
    ),
    "a rank by a constant of a constant": model(
        [
            node("ConstantOfShape", "s", "t", value=numpy_helper.from_array(np.array([1]))),
            node("ConstantOfShape", "t", "y"),
        ],
        [],
        [value("y")],
        {"s": np.array([LENGTH])},
    ),
    "a rank by doubling": model(
        [
            node("Shape", "x", "s0"),
            *(node("Concat", f"s{i} s{i}", f"s{i + 1}", axis=0) for i in range(28)),
            node("ConstantOfShape", "s28", "y"),
        ],
        [value("x", [3])],
        [value("y")],
    ),
    "a long vector": model(
        [node("RandomNormal", "", "r", shape=[2**31]), node("Add", "x r", "y")], [value("x", [1])], [value("y")]
    ),
    "a split into many": model(
        [node("Split", "x", "y", num_outputs=2**30)], [value("x", [2**30])], [value("y")], opset=18
    ),
    "many constants, each below the limit": model(
        [
            *(node("ConstantOfShape", "s", f"c{i}") for i in range(40)),
            node("Sum", " ".join(f"c{i}" for i in range(40)), "y"),
        ],
        [],
        [value("y")],
        {"s": np.array([2**24])},
    ),
    "floats by doubling": model(
        [*doubled("Concat", 29, axis=0), node("ReduceSum", "s29", "r", keepdims=0), node("Add", "x r", "y")],
        [value("x", [1])],
        [value("y")],
        {"s0": np.ones(1, np.float32)},
    ),
    "floats by doubling, with a copy in between": model(
        [
            *(node("Neg", f"s{i}", f"t{i}") for i in range(29)),
            *(node("Concat", f"s{i} t{i}", f"s{i + 1}", axis=0) for i in range(29)),
            node("ReduceSum", "s29", "r", keepdims=0),
            node("Add", "x r", "y"),
        ],
        [value("x", [1])],
        [value("y")],
        {"s0": np.ones(1, np.float32)},
    ),
    "integers by doubling": model(
        [node("Shape", "x", "s0"), *doubled("Concat", 29, axis=0), node("ReduceSum", "s29", "y", keepdims=0)],
        [value("x", [1])],
        [value("y", [], I64)],
    ),
    "integers by doubling in a branch": model(
        [
            node(
                "If",
                "c",
                "y",
                then_branch=branch(
                    "t",
                    node("Shape", "x", "s0"),
                    *doubled("Concat", 29, axis=0),
                    node("ReduceSum", "s29", "r", keepdims=0),
                ),
                else_branch=branch("e", node("Size", "x", "q"), output="q"),
            )
        ],
        [value("x", [1]), value("c", [], BOOL)],
        [value("y", [], I64)],
    ),
    "texts by doubling": model(
        [*doubled("StringConcat", 29), node("Equal", "s29 x", "y")],
        [value("x", [1], TensorProto.STRING)],
        [value("y", None, BOOL)],
        {"s0": np.array(["a"], object)},
        opset=20,
    ),
    "indices by doubling": model(
        [
            *(
                made
                for i in range(29)
                for made in (
                    node("Concat", f"s{i} s{i}", f"t{i}", axis=0),
                    node("Add", f"t{i} one", f"u{i}"),
                    node("NonZero", f"u{i}", f"n{i}"),
                    node("Reshape", f"n{i} all", f"s{i + 1}"),
                )
            ),
            node("ReduceSum", "s29", "y", keepdims=0),
        ],
        [],
        [value("y", None, I64)],
        {"s0": np.ones(1, np.int64), "one": np.array([1]), "all": np.array([-1])},
    ),
    "a chain of large tensors": model(
        [
            node("ConstantOfShape", "k", "a0"),
            *(node("Neg", f"a{i}", f"a{i + 1}") for i in range(500)),
            node("Add", "a500 x", "y"),
        ],
        [value("x", [1])],
        [value("y")],
        {"k": np.array([2**26])},
    ),
    "a chain of which every tensor is read at the end": model(
        [
            node("ConstantOfShape", "k", "a0"),
            *(node("Neg", f"a{i}", f"a{i + 1}") for i in range(60)),
            node("Sum", " ".join(f"a{i}" for i in range(60)) + " x", "y"),
        ],
        [value("x", [1])],
        [value("y")],
        {"k": np.array([2**24])},
    ),
    "a chain beside a node that cannot be computed": model(
        [
            node("ConstantOfShape", "k", "a0"),
            *(node("Neg", f"a{i}", f"a{i + 1}") for i in range(40)),
            node("Add", "a40 x", "z"),
            node("Gather", "table seven", "g"),
            node("Add", "z g", "y"),
        ],
        [value("x", [1])],
        [value("y")],
        {"k": np.array([2**24]), "table": np.ones(3, np.float32), "seven": np.array([7])},
    ),
}
"""`floats by doubling, with a copy in between` lists its nodes out of order: import sorts them."""

PROGRAM = """
import onnxruntime
from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.pipeline import import_model
from tests.fresh_process import peak
before = peak()
for path in PATHS:
    try:
        import_model(path)
        answer = "imported"
    except InvalidGraphError:
        answer = "refused"
    print(answer, (peak() - before) // 1024)
"""


def test_small_models_of_huge_tensors_take_little_memory(tmp_path: Path) -> None:
    """In one process: the peak after a model is that of all before it, too."""
    paths = [save(tmp_path, proto, f"{number}.onnx") for number, proto in enumerate(HUGE.values())]
    assert all(path.stat().st_size < 20000 for path in paths)
    lines = fresh(f"PATHS = {list(map(str, paths))!r}\n{PROGRAM}").splitlines()
    for what, line in zip(HUGE, lines, strict=True):
        answer, megabytes = line.split()
        refused = any(word in what for word in ("rank", "split", "branch"))
        assert answer == ("refused" if refused else "imported"), what
        assert int(megabytes) < 500, what


def loop_over_constants(trips: int, body_nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    body = helper.make_graph(
        [*body_nodes, node("Identity", "go", "on")],
        "body",
        [value("i", [], I64), value("go", [], BOOL), value("s", None)],
        [value("on", [], BOOL), value("t", None)],
    )
    nodes = [
        node("Loop", "n - z", "w", "loop", body=body),
        node("ReduceSum", "w", "r", keepdims=0),
        node("Add", "x r", "y"),
    ]
    return model(nodes, [value("x", [1])], [value("y")], {"n": np.array(trips), "z": np.ones(1, np.float32)})


def test_a_short_loop_over_constants_is_computed(tmp_path: Path) -> None:
    proto = loop_over_constants(5, [node("Add", "s s", "t")])
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(1)})) == ["Add"]


def test_a_long_loop_over_constants_stays_a_loop(tmp_path: Path) -> None:
    proto = loop_over_constants(2**24, [node("Add", "s s", "t")])
    assert op_types(import_model(save(tmp_path, proto)))[0] == "Loop"


def loop_of_x(trips: int | None, first: str, *nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A Loop whose body doubles x, and with `nodes` makes its condition `on` of `go`."""
    body = helper.make_graph(
        [node("Add", "s s", "t"), *nodes],
        "body",
        [value("i", [], I64), value("go", [], BOOL), value("s", [3])],
        [value("on", [], BOOL), value("t", [3])],
    )
    given = "-" if trips is None else "n"
    constants = {"true": np.array(True), "false": np.array(False), "few": np.array(5)}
    constants |= {} if trips is None else {"n": np.array(trips)}
    loop = node("Loop", f"{given} {first} x", "y", "often", body=body)
    return model([loop], [value("x", [3]), value("asked", [], BOOL)], [value("y", [3])], constants)


COPIED = [node("Identity", "go", "on")]
ENDLESS = {
    "without a condition": loop_of_x(2**62, "-", *COPIED),
    "from true": loop_of_x(2**63 - 1, "true", *COPIED),
    "constant inside": loop_of_x(2**40, "-", node("Constant", "", "on", value=numpy_helper.from_array(np.array(True)))),
    "constant outside": loop_of_x(2**31, "true", node("Identity", "true", "on")),
    "computed of constants": loop_of_x(2**62, "true", node("Not", "false", "on")),
    "without a number of trips": loop_of_x(None, "true", *COPIED),
}
ENDING = {
    "a while": loop_of_x(2**63 - 1, "true", node("Less", "i few", "on")),
    "a while of no number": loop_of_x(None, "true", node("Less", "i few", "on")),
    "never begun": loop_of_x(2**62, "false", *COPIED),
    "only if asked": loop_of_x(2**62, "asked", *COPIED),
    "a negative number": loop_of_x(-(2**62), "true", *COPIED),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_loop_that_does_not_end_within_hours_is_refused(tmp_path: Path, what: str) -> None:
    message = r"the body of Loop 'often' runs (\d{10,} times|for ever), as"
    with pytest.raises(InvalidGraphError, match=message) as raised:
        import_model(save(tmp_path, ENDLESS[what]))
    assert raised.value.where == "m.onnx: node 'often'"


@pytest.mark.parametrize("what", ENDING)
def test_a_loop_that_may_end_is_imported(tmp_path: Path, what: str) -> None:
    imported_like(save(tmp_path, ENDING[what]), {"x": noise(3), "asked": np.array(False)})


def test_loops_in_loops_that_do_not_end_within_hours_are_refused(tmp_path: Path) -> None:
    inner = loop_of_x(2**20, "true", *COPIED).graph.node[0]
    inner.input[2], inner.output[0] = "u", "v"
    body = helper.make_graph(
        [inner, node("Identity", "more", "again")],
        "outer",
        [value("j", [], I64), value("more", [], BOOL), value("u", [3])],
        [value("again", [], BOOL), value("v", [3])],
    )
    constants = {"n": np.array(2**20), "true": np.array(True)}
    made = model([node("Loop", "n - x", "y", body=body)], [value("x", [3])], [value("y", [3])], constants)
    with pytest.raises(InvalidGraphError, match=f"the body of Loop 'often' runs {2**40} times"):
        import_model(save(tmp_path, made))


def test_a_loop_whose_state_grows_stays_a_loop(tmp_path: Path) -> None:
    proto = loop_over_constants(40, [node("Concat", "s s", "t", axis=0)])
    assert op_types(import_model(save(tmp_path, proto)))[0] == "Loop"


def functions_of(levels: int, calls: int) -> onnx.ModelProto:
    """A function that calls another `calls` times, which calls a third, and so on."""
    functions = []
    for level in range(levels):
        op_type, domain = (f"F{level - 1}", "ours") if level else ("Relu", "")
        names = ["a", *(f"m{i}" for i in range(1, calls)), "b"]
        nodes = [node(op_type, names[i], names[i + 1], domain=domain) for i in range(calls)]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ours", 1)]
        functions.append(helper.make_function("ours", f"F{level}", ["a"], ["b"], nodes, opsets))
    call = node(f"F{levels - 1}", "x", "y", domain="ours")
    return model([call], [value("x", [3])], [value("y")], domains=[("ours", 1)], functions=functions)


@pytest.mark.parametrize(("levels", "calls"), [(30, 2), (17, 2), (3, 60)])
def test_functions_that_expand_exponentially_are_refused(tmp_path: Path, levels: int, calls: int) -> None:
    with pytest.raises(InvalidGraphError, match="more than 100000 nodes"):
        import_model(save(tmp_path, functions_of(levels, calls)))


def test_functions_that_are_called_often_are_expanded(tmp_path: Path) -> None:
    assert len(import_model(save(tmp_path, functions_of(2, 30))).graph.nodes) == 900


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_sparse_tensors_that_store_little_are_not_made_large(tmp_path: Path, count: int, place: str) -> None:
    """Dense, they would have 2 GiB of a file of a few kB."""
    stored = [
        helper.make_sparse_tensor(
            numpy_helper.from_array(np.ones(1, np.float32), f"v{i}"),
            numpy_helper.from_array(np.array([3]), f"i{i}"),
            [2**29 // count // (1 if place == "initializer" else 3)],
        )
        for i in range(count)
    ]
    names = " ".join(f"v{i}" for i in range(count))
    made = model([node("Sum", f"{names} x", "y")], [value("x", [1])], [value("y")])
    if place == "initializer":
        made.graph.sparse_initializer.extend(stored)
    else:
        constants = [node("Constant", "", f"v{i}", sparse_value=tensor) for i, tensor in enumerate(stored)]
        made.graph.node.extend(constants)
    with pytest.raises(InvalidGraphError, match="a sparse tensor of which 12 bytes are stored has"):
        import_model(save(tmp_path, made))


def test_a_call_takes_only_the_functions_that_it_needs_to_the_inliner() -> None:
    def function(name: str, op_type: str, domain: str) -> onnx.FunctionProto:
        inner = node(op_type, "a", "b", domain=domain)
        return helper.make_function("ours", name, ["a"], ["b"], [inner], [helper.make_opsetid("", 17)])

    table = {
        ("ours", f.name): f
        for f in (
            function("A", "B", "ours"),
            function("B", "Relu", ""),
            *(function(f"X{i}", "Relu", "") for i in range(9)),
        )
    }
    needed = _called_by(node("A", "x", "y", domain="ours"), table)
    assert [f.name for f in needed] == ["A", "B"]


def test_many_names_without_letters_are_numbered_in_one_pass() -> None:
    class Counting(set[str]):
        asked = 0

        def __contains__(self, name: object) -> bool:
            self.asked += 1
            return super().__contains__(name)

    namer = Namer()
    taken = namer._taken["v"] = Counting()
    names = [namer.give("模型" * (i + 1), "v") for i in range(1000)]
    assert names[:3] == ["v", "v_2", "v_3"] and len(set(names)) == 1000
    assert taken.asked < 3000


def test_a_model_with_too_many_inputs_and_outputs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MOST_ENDS", 7)
    ends = [value(f"x{i}", [3]) for i in range(4)], [value(f"y{i}", [3]) for i in range(4)]
    made = model([node("Relu", f"x{i}", f"y{i}") for i in range(4)], *ends)
    with pytest.raises(InvalidGraphError, match="the model has 8 inputs and outputs, more than 7"):
        import_model(save(tmp_path, made))


@pytest.mark.parametrize("kind", ["Concat", "Tile", "ConstantOfShape"])
def test_a_small_model_does_not_make_large_constants(tmp_path: Path, kind: str) -> None:
    """They are computed at run time: a model of 1 kB made a bundle of 134 MB."""
    count = 2**24
    nodes = {
        "Concat": [node("Shape", "x", "s0"), *doubled("Concat", 24, axis=0), node("Identity", "s24", "y")],
        "Tile": [node("Shape", "x", "s"), node("Tile", "s n", "y")],
        "ConstantOfShape": [node("ConstantOfShape", "n", "c"), node("Identity", "c", "y")],
    }[kind]
    made = model(
        nodes,
        [value("x", [3])],
        [value("y", None, I64 if kind != "ConstantOfShape" else TensorProto.FLOAT)],
        {"n": np.array([count])},
    )
    found = import_model(save(tmp_path, made))
    assert sum(array.nbytes for array in found.weights.values()) <= MAX_GROWTH_BYTES
    assert found.graph.nodes
