"""A check runs the code of each branch that an input of the model chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from heterocc.compiler import compile_model
from heterocc.compiler.checking.branches import other_branches
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import model, value
from tests.compiler.onnx_build import node as made
from tests.compiler.test_decoders import merged


@pytest.mark.parametrize("node", ["Add_9", "Add_9_2"])
def test_a_wrong_kernel_in_either_branch_of_a_merged_decoder_is_found(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is of the first step, without past rows, the other of later ones."""
    monkeypatch.setenv("HETEROCC_TEST_WRONG_KERNEL", node)
    report = compile_model(merged(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU,ORT", measure=False)
    assert [(m.node, m.source, m.target) for m in report.moved] == [("If_0", "CPU", "ORT")]


@pytest.mark.parametrize("shape", [[], [1]])
def test_a_condition_behind_a_cast_and_a_shape_is_the_inputs_and_one_that_is_computed_is_not(shape: list[int]) -> None:
    def branch(name: str) -> object:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])
        return helper.make_graph([helper.make_node("Neg" if name == "a" else "Abs", ["x"], [name])], name, [], [out])

    proto = model(
        [
            made("Not", "flag", "inverse"),
            made("Squeeze" if shape else "Identity", "inverse", "condition"),
            made("If", "condition", "y", then_branch=branch("a"), else_branch=branch("b")),
            made("ReduceSum", "x", "total", keepdims=0),
            made("Greater", "total zero", "large"),
            made("If", "large", "z", then_branch=branch("a"), else_branch=branch("b")),
        ],
        [value("x", [3]), value("flag", shape, TensorProto.BOOL)],
        [value("y"), value("z")],
        {"zero": np.zeros((), np.float32)},
    )
    feed = {"x": np.ones(3, np.float32), "flag": np.full(shape, True)}
    found = list(other_branches(import_model(proto), feed))
    assert [name for name, _ in found] == ["flag"]
    other = found[0][1]["flag"]
    assert isinstance(other, np.ndarray) and other.shape == tuple(shape) and not other.any()  # no number of numpy
    assert found[0][1]["x"] is feed["x"]
