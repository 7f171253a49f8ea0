"""Look-ups of functions between 8-bit numbers, against the same functions of each number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from heterocc.compiler import compile_model
from heterocc.compiler.lower.relax.importer import ImportedFunction
from heterocc.compiler.lower.relax.tables import with_tables
from heterocc.compiler.lower.straight import bindings_of
from heterocc.runtime import load

node = helper.make_node
op = relax.op


def function(kind: str, elements: int = 4096) -> ImportedFunction:
    """What is quantised again of dequantised numbers, by a node for each step."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((elements,), "int8"))
    y = relax.Var("y", relax.TensorType((elements,), "float32"))
    scale = relax.Var("s", relax.TensorType((), "float32"))
    with builder.function("main", params=[x, y, scale]):
        with builder.dataflow():
            numbers = builder.emit(op.multiply(op.astype(x, "float32"), scale))
            if kind == "arithmetic":
                made = builder.emit(op.nn.relu(numbers))
            elif kind == "two values":
                made = builder.emit(op.multiply(op.sigmoid(numbers), y))
            else:
                inner = builder.emit(op.astype(op.round(op.divide(op.sigmoid(numbers), scale)), "int8"))
                made = builder.emit(op.multiply(numbers, op.astype(inner, "float32")))
            result = builder.emit_output(relax.Tuple([builder.emit(op.astype(op.round(made), "uint8"))]))
        builder.emit_func_output(result)
    mod = relax.transform.Normalize()(builder.finalize())
    names = {b.var.name: (f"node_{b.var.name}",) for b in bindings_of(mod["main"])}
    return ImportedFunction(mod, ("x", "y"), {}, names, {})


@pytest.mark.parametrize(
    ("kind", "elements", "has_table"),
    [("gate", 4096, True), ("gate", 4095, False), ("arithmetic", 4096, False), ("two values", 4096, False)],
)
def test_long_functions_of_one_value_are_looked_up(kind: str, elements: int, has_table: bool) -> None:
    before = function(kind, elements)
    after = with_tables(before)
    *steps, last = bindings_of(after.mod["main"])
    assert (last.value.op.name == "relax.call_tir") is has_table
    if has_table:
        assert all(list(b.var.ty.shape.values) == [256] for b in steps)
        assert set(after.node_of[last.var.name]) == {name for names in before.node_of.values() for name in names}


def test_every_byte_has_the_result_that_it_has_without_a_table(tmp_path: Path) -> None:
    numbers = {"s": np.float32(0.05), "z": np.uint8(131), "t": np.float32(1 / 256), "u": np.uint8(0), "i": np.int8(-7)}
    nodes = [
        node("DequantizeLinear", ["a", "s", "z"], ["f"]),
        node("Sigmoid", ["f"], ["e"]),
        node("QuantizeLinear", ["e", "t", "u"], ["eq"]),
        node("DequantizeLinear", ["eq", "t", "u"], ["ef"]),
        node("Mul", ["f", "ef"], ["g"]),
        node("QuantizeLinear", ["g", "s", "z"], ["c"]),
        node("DequantizeLinear", ["b", "s", "i"], ["h"]),
        node("Tanh", ["h"], ["k"]),
        node("QuantizeLinear", ["k", "t", "i"], ["d"]),
    ]
    ends = [("a", TensorProto.UINT8), ("b", TensorProto.INT8)], [("c", TensorProto.UINT8), ("d", TensorProto.INT8)]
    found = []
    for rows in (1, 17):
        given, results = ([helper.make_tensor_value_info(n, t, [rows, 256]) for n, t in end] for end in ends)
        weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in numbers.items()]
        graph = helper.make_graph(nodes, "g", given, results, weights)
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "m.onnx"
        )
        compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="CPU", check=False)
        every = np.arange(256).astype(np.uint8)
        feeds = {"a": np.tile(every, (rows, 1)), "b": np.tile(every.view(np.int8), (rows, 1))}
        with load(tmp_path / "m.hcb") as session:
            found.append({name: np.asarray(array).copy() for name, array in session.run(feeds).items()})
    for name, array in found[1].items():
        np.testing.assert_array_equal(array, np.repeat(found[0][name], 17, 0))
    assert len(np.unique(found[0]["d"])) > 20
