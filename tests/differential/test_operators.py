"""Operators in the forms that exporters write, on the CPU alone, against ONNX Runtime."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import heterocc.runtime
from heterocc.artifacts.errors import InputValueError
from heterocc.compiler import compile_model
from heterocc.compiler.support.query import query_model
from tests.differential.operator_cases import CASES
from tests.differential.operators import case, constant, draw, failures, save_model
from tests.reference import reference_session

TESTED_ELSEWHERE = ("conv", "rnn")
"""Themes of which the kernels' own tests have many more cases: slow ones here."""


@pytest.mark.parametrize("theme", [pytest.param(t, marks=[pytest.mark.slow] * (t in TESTED_ELSEWHERE)) for t in CASES])
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
def test_an_index_far_out_of_range_is_an_error_that_names_the_node(far: object, tmp_path: Path) -> None:
    path, feed = save_model([far], tmp_path)
    compile_model(path, tmp_path / "m.hcb", devices="CPU", check=False)
    with heterocc.runtime.load(tmp_path / "m.hcb") as session:
        for _ in range(2):
            with pytest.raises(InputValueError, match="an index is out of range"):
                session.run(feed)


ROWS = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
TABLE = np.arange(10, dtype=np.float32).reshape(5, 2)
ONES = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("reader", "given", "right", "wrong"),
    [
        (
            helper.make_node("RotaryEmbedding", ["x", "at", "cos", "sin"], ["y"], domain="com.microsoft"),
            {"x": ROWS, "cos": TABLE, "sin": TABLE},
            np.array([[0, 1, 4]]),
            [[[0, 1, 5]], [[-1, 0, 1]]],
        ),
        (
            helper.make_node(
                "EmbedLayerNormalization",
                ["at", "", "words", "places", "", "scale", "beta"],
                ["y", "count"],
                domain="com.microsoft",
            ),
            {"words": TABLE, "places": TABLE, "scale": ONES, "beta": ONES},
            np.array([[0, 4, 2]], np.int32),
            [[[0, 5, 2]], [[-1, 4, 2]]],
        ),
        (
            helper.make_node("ArrayFeatureExtractor", ["x", "at"], ["y"], domain="ai.onnx.ml"),
            {"x": TABLE},
            np.array([1, 0]),
            [[2, 0], [0, -1]],
        ),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else "",
)
def test_operators_of_other_domains_refuse_an_index_out_of_range_as_onnx_runtime_does(
    reader: onnx.NodeProto, given: dict[str, np.ndarray], right: np.ndarray, wrong: list[object], tmp_path: Path
) -> None:
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in {**given, "at": right}.items()
    ]
    graph = helper.make_graph([reader], "g", infos, [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)])
    domains = {"": 17, "com.microsoft": 1, "ai.onnx.ml": 3}
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid(*d) for d in domains.items()], ir_version=9)
    compile_model(made, tmp_path / "m.hcb", devices="CPU", check=False)
    reference = reference_session(made)
    with heterocc.runtime.load(tmp_path / "m.hcb") as session:
        feed = {**given, "at": right}
        np.testing.assert_allclose(session.run(feed)["y"], reference.run(["y"], feed)[0], rtol=1e-5, atol=1e-5)
        for places in wrong:
            feed = {**given, "at": np.array(places, right.dtype)}
            with pytest.raises(InputValueError, match=f"{reader.op_type} .*an index is out of range"):
                session.run(feed)
            with pytest.raises(Exception, match=r"out of (range|bound)"):
                reference.run(None, feed)


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
    node = helper.make_node("MurmurHash3", ["x"], ["y"], name="hash", domain="com.microsoft", positive=0)
    info = [helper.make_tensor_value_info(n, onnx.TensorProto.INT32, [2, 2]) for n in ("x", "y")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", info[:1], info[1:]), opset_imports=imports, ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert query_model(tmp_path / "m.onnx", "CPU").reason("hash", "CPU") == (
        "TVM has no converter for com.microsoft::MurmurHash3"
    )
