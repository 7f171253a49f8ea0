"""Operators of ONNX Runtime's domain that ONNX has under another name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler import import_model
from tests.compiler.small import save
from tests.differential.operators import case, failures
from tests.hostile.own_cases import OWN

DOMAIN = "com.microsoft"
NAMES = {"CDist", "ExpandDims", "GridSample", "Pad", "Range", "TransposeMatMul", "Trilu", "Unique"}


def test_operators_of_onnx_runtime_equal_it_as_those_of_onnx(tmp_path: Path) -> None:
    cases = [each for each in OWN if each.op in NAMES and each.domain == DOMAIN]
    assert {each.op for each in cases} == NAMES
    nan = np.float32("nan")  # no NaN is equal to another one
    cases.append(case("Unique", np.array([2, nan, 1, 2, nan, 0], np.float32), outputs=3, domain=DOMAIN))
    assert failures(cases, tmp_path) == []


def test_nodes_in_place_of_one_are_from_it(tmp_path: Path) -> None:
    node = helper.make_node("ExpandDims", ["x", "axis"], ["y"], name="wider", domain=DOMAIN)
    path = save(tmp_path / "m.onnx", [node], {"x": (3, 4)}, {"y": ()}, {"axis": np.array(1, np.int32)})
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    imported = import_model(model)
    assert [(n.op_type, n.original) for n in imported.graph.nodes] == [("Unsqueeze", ("wider",))]
    assert imported.graph.values[imported.graph.outputs[0]].shape == (3, 1, 4)
