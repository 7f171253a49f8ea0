"""Loops over rows as exporters of recurrent layers write them, and loops that only look like these."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.compiler.importer.draft.draft import bodies
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.repeating import counted
from tests.compiler.onnx_build import (
    I64,
    assert_close,
    imported_like,
    model,
    node,
    noise,
    op_types,
    run_imported,
    run_original,
    save,
    value,
)

BOOL, I32, F32 = TensorProto.BOOL, TensorProto.INT32, TensorProto.FLOAT

CELL = (
    node("MatMul", "row k", "xk"),
    node("MatMul", "h r", "hr"),
    node("Add", "xk hr", "sum"),
    node("Tanh", "sum", "next"),
)
COUNTING = (
    node("Add", "place one", "later"),
    node("Cast", "later", "counted", to=F32),
    node("Cast", "steps", "most", to=F32),
    node("Less", "counted most", "again"),
)
ROW = (node("Gather", "turned place", "row"),)


def _while(
    *inside: onnx.NodeProto,
    results: str = "last",
    returned: str = "next k r steps",
    rows: str = "next",
    limit: str = "-",
) -> onnx.ModelProto:
    """TensorFlow's `while` over the steps of x [batch, steps, 3], with its weights as states."""
    given = [
        value("turn", [], I64),
        value("go", [], BOOL),
        value("place", [], I32),
        value("h", [None, 4]),
        value("k", [3, 4]),
        value("r", [4, 4]),
        value("steps", [], I32),
    ]
    kinds = {"steps": I32, "later": I32, "place": I32, "again": BOOL}
    ends = ["again", "later", *returned.split(), *rows.split()]
    nodes = list(inside)
    for place, name in enumerate(ends):
        if name in {i.name for i in given} or name in ends[:place]:  # the body returns copies
            ends[place] = f"{name}_{place}"
            kinds[ends[place]] = kinds.get(name, F32)
            nodes.append(node("Identity", name, ends[place]))
    body = helper.make_graph(nodes, "body", given, [value(n, None, kinds.get(n, F32)) for n in ends])
    outer = [
        node("Transpose", "x", "turned", perm=[1, 0, 2]),
        node("Shape", "turned", "sizes"),
        node("Gather", "sizes zero", "long"),
        node("Cast", "long", "count", to=I32),
        node("Cast", "count", "many", to=F32),
        node("Less", "nothing many", "first"),
        node("Shape", "x", "outside"),
        node("Slice", "outside begin end", "batch"),
        node("Concat", "batch four", "states", axis=0),
        node("ConstantOfShape", "states", "h0"),
        node("Loop", f"{limit} first none h0 k0 r0 count", f"placed {results} k1 r1 steps1 rows", "loop", body=body),
    ]
    constants = {
        "zero": np.array(0),
        "none": np.array(0, np.int32),
        "one": np.array(1, np.int32),
        "nothing": np.array(0, np.float32),
        "begin": np.array([0]),
        "end": np.array([1]),
        "four": np.array([4]),
        "k0": noise(3, 4),
        "r0": noise(4, 4, seed=1),
        "endless": np.array(2**63 - 1),
    }
    outputs = [value("last", [None, 4]), value("rows", [None, None, 4])]
    return model(outer, [value("x", ["batch", "length", 3])], outputs, constants)


def _checked(path: Path, sizes: Sequence[tuple[int, int]] = ((1, 1), (2, 5))) -> ImportedModel:
    """The model with dynamic sizes, which computes what the file does."""
    imported = import_model(path, keep_dims=True)
    for batch, length in sizes:
        feed = {"x": noise(batch, length, 3, seed=length)}
        assert_close(run_imported(imported, feed), run_original(path, feed))
    return imported


def _loop(imported: ImportedModel) -> onnx.NodeProto:
    return next(n for n in imported.proto.graph.node if n.op_type in ("Loop", "Scan"))


@pytest.mark.parametrize("limit", ["-", "long", "endless"])
def test_a_while_over_rows_is_a_scan_whose_turns_multiply_the_state_alone(tmp_path: Path, limit: str) -> None:
    imported = _checked(save(tmp_path, _while(*ROW, *CELL, *COUNTING, limit=limit)))
    loop = _loop(imported)
    assert loop.op_type == "Scan"
    assert [n.op_type for n in bodies(loop)[0].node if n.op_type != "Identity"] == ["MatMul", "Add", "Tanh"]
    assert len(bodies(loop)[0].input) == 2  # the state, and a row of the product
    assert op_types(imported).count("MatMul") == 1
    rows = imported.graph.values[imported.graph.outputs[1]]
    assert rows.shape is not None
    assert rows.shape[:2] == ("length", "batch")


def test_a_while_over_rows_of_a_fixed_length_is_a_scan(tmp_path: Path) -> None:
    path = save(tmp_path, _while(*ROW, *CELL, *COUNTING))
    imported = imported_like(path, {"x": noise(2, 5, 3)}, {"x": (2, 5, 3)})
    assert "Loop" not in op_types(imported)


ENDS_EARLY = (
    node("ReduceMax", "next", "largest", keepdims=0),
    node("Less", "largest many", "small"),
    node("Less", "counted most", "inside"),
    node("And", "inside small", "again"),
)


@pytest.mark.parametrize(
    ("inside", "more"),
    [
        ((*ROW, *CELL, *COUNTING[:-1], *ENDS_EARLY), {}),
        ((COUNTING[0], node("Gather", "turned later", "row"), *CELL, *COUNTING[1:]), {}),
        ((*ROW, *CELL, *COUNTING[:-1], node("Less", "counted nothing", "again")), {}),
        ((*ROW, *CELL, *COUNTING, node("Cast", "turn", "turned_over", to=F32)), {"rows": "turned_over"}),
    ],
    ids=["a condition on data", "the next row", "another end", "the number of the turn as a row"],
)
def test_a_loop_that_does_more_than_go_over_rows_stays_one(
    tmp_path: Path, inside: tuple[onnx.NodeProto, ...], more: dict[str, str]
) -> None:
    proto = _while(*inside, **more)
    if more:
        proto.graph.output[1].CopyFrom(value("rows"))
    path = save(tmp_path, proto)
    imported = import_model(path, keep_dims=True)
    assert _loop(imported).op_type == "Loop"
    if inside[0] is not COUNTING[0]:  # which reads a row behind the last one
        feed = {"x": noise(2, 5, 3)}
        assert_close(run_imported(imported, feed), run_original(path, feed))


def test_a_scan_counts_its_turns_if_something_else_reads_the_count(tmp_path: Path) -> None:
    proto = _while(*ROW, *CELL, *COUNTING, rows="later")
    proto.graph.output[1].CopyFrom(value("rows", None, I32))
    loop = _loop(_checked(save(tmp_path, proto)))
    assert (loop.op_type, len(bodies(loop)[0].input)) == ("Scan", 3)


def test_rows_that_a_loop_collects_as_they_are_stay_right(tmp_path: Path) -> None:
    proto = _while(*ROW, *CELL, *COUNTING, rows="row")
    proto.graph.output[1].CopyFrom(value("rows"))
    assert _loop(_checked(save(tmp_path, proto))).op_type == "Scan"


def test_states_that_change_places_are_kept(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Add", "a b", "total"), node("Identity", "b", "first"), node("Identity", "a", "second")],
        "body",
        [value("turn", [], I64), value("go", [], BOOL), value("a", [2]), value("b", [2]), value("c", [2])],
        [value("go", [], BOOL), value("first", [2]), value("second", [2]), value("c", [2]), value("total", [2])],
    )
    loop = node("Loop", "three - x x2 x", "p q s t", "loop", body=body)
    proto = model([node("Neg", "x", "x2"), loop], [value("x", [2])], [value(n) for n in "pqst"], {"three": np.array(3)})
    imported = imported_like(save(tmp_path, proto), {"x": noise(2)})
    assert len(bodies(_loop(imported))[0].input) == 4  # the state that never changes is not passed


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_products_of_the_rows_of_a_scan_are_computed_together(tmp_path: Path, axis: int, reverse: int) -> None:
    body = helper.make_graph(
        [*CELL, node("Add", "row next", "both")],
        "body",
        [value("h", [2, 3]), value("row", [2, 3])],
        [value("next", [2, 3]), value("both", [2, 3])],
    )
    options = {"scan_input_axes": [axis], "scan_input_directions": [reverse], "num_scan_inputs": 1}
    scan = node("Scan", "h0 x", "last rows", "scan", body=body, **options)
    shape = [5, 2, 3] if axis == 0 else [2, 5, 3]
    constants = {"h0": noise(2, 3, seed=3), "k": noise(3, 3), "r": noise(3, 3, seed=1)}
    proto = model([scan], [value("x", shape)], [value("last"), value("rows")], constants)
    imported = imported_like(save(tmp_path, proto), {"x": noise(*shape)})
    assert op_types(imported) == ["MatMul", "Scan"]
    assert sum(n.op_type == "MatMul" for n in bodies(_loop(imported))[0].node) == 1


@pytest.mark.parametrize("biased", [True, False])
def test_a_gemm_of_a_row_is_computed_before_the_scan_without_its_bias(tmp_path: Path, biased: bool) -> None:
    """PyTorch exports the cells of a loop so."""
    body = helper.make_graph(
        [node("Gemm", f"row k {'b' if biased else ''}", "xk", transB=1), *CELL[1:]],
        "body",
        [value("h", [2, 4]), value("row", [2, 3])],
        [value("next", [2, 4]), value("xk", [2, 4])],
    )
    scan = node("Scan", "h0 x", "last rows", "scan", body=body, num_scan_inputs=1)
    constants = {"h0": noise(2, 4, seed=3), "k": noise(4, 3), "r": noise(4, 4, seed=1), "b": noise(4, seed=2)}
    proto = model([scan], [value("x", [5, 2, 3])], [value("last"), value("rows")], constants)
    imported = imported_like(save(tmp_path, proto), {"x": noise(5, 2, 3)})
    assert op_types(imported) == ["MatMul", "Scan"]
    assert not any(n.op_type == "Gemm" for n in bodies(_loop(imported))[0].node)


def test_loops_that_are_no_scans_do_not_each_look_at_what_all_nodes_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unneeded(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(counted, "reads", unneeded)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (int64 m, bool c, float[2, 4] x) => (float[2, 4] y) {
        y = Loop (m, c, x) <body = b (int64 i, bool go, float[2, 4] s) => (bool on, float[2, 4] r) {
            on = Identity (go)
            r = Relu (s)
        }>
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert [node.op_type for node in import_model(tmp_path / "m.onnx").graph.nodes] == ["Loop"]
