"""Operators in the forms that exporters write, on the CPU alone, against ONNX Runtime."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import heterocc.runtime
from heterocc.compiler.driver import compile_model
from heterocc.compiler.support.query import query_model
from tests.differential.operator_cases import CASES
from tests.differential.operators import case, constant, draw, failures, save_model


@pytest.mark.parametrize("theme", CASES)
def test_an_operator_runs_on_the_cpu_and_is_right(theme: str, tmp_path: Path) -> None:
    by_opset = groupby(sorted(CASES[theme], key=lambda c: c.opset), key=lambda c: c.opset)
    assert [f for _, cases in by_opset for f in failures(list(cases), tmp_path)] == []


@pytest.mark.parametrize(
    "far",
    [
        case("Gather", draw(5, 3), np.array([4, 10**9, -(10**9)])),
        case("GatherElements", draw(5, 3), np.full((2, 3), 10**9)),
        case("GatherND", draw(5, 3), np.array([[10**9, -(10**9)]])),
        case("ScatterElements", draw(5, 3), np.full((2, 3), 10**9), draw(2, 3)),
        case("ScatterND", draw(5, 3), np.array([[10**9]]), draw(1, 3)),
    ],
    ids=lambda c: c.op,
)
def test_an_index_far_out_of_range_touches_no_other_memory(far: object, tmp_path: Path) -> None:
    path, feed = save_model([far], tmp_path)
    compile_model(path, tmp_path / "m.hcb", devices="CPU", check=False)
    (result,) = heterocc.runtime.load(tmp_path / "m.hcb").run(feed).values()
    known = np.concatenate([feed["c0_i0"].ravel(), feed.get("c0_i2", np.zeros(0, np.float32)).ravel()])
    assert np.isin(result, known).all()


def test_a_constant_index_out_of_range_is_refused(tmp_path: Path) -> None:
    bad = case("ScatterND", draw(5, 3), constant([[9]], np.int64), draw(1, 3))
    path, _ = save_model([bad], tmp_path)
    query = query_model(path, "CPU")
    assert "out of range" in str(query.reason(query.nowhere[0], "CPU"))


def test_stft_without_its_default_written_out_compiles_and_is_right(tmp_path: Path) -> None:
    window = constant(np.hanning(32), np.float32)
    stft = case("STFT", draw(1, 64, 1), constant(16, np.int64), window, constant(32, np.int64))
    path, feed = save_model([stft], tmp_path)
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU,ORT")
    (result,) = heterocc.runtime.load(tmp_path / "m.hcb").run(feed).values()
    assert not report.moved
    assert result.shape == (1, 3, 17, 2)


def test_an_operator_of_another_domain_is_not_taken_for_the_standard_one(tmp_path: Path) -> None:
    node = helper.make_node("Inverse", ["x"], ["y"], name="inverse", domain="com.microsoft")
    info = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 2]) for n in ("x", "y")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", info[:1], info[1:]), opset_imports=imports, ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert query_model(tmp_path / "m.onnx", "CPU").reason("inverse", "CPU") == (
        "TVM has no converter for com.microsoft::Inverse"
    )
