"""A model that ONNX Runtime refuses is an error of the compile, not a bundle that cannot run."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.errors import (
    DynamicShapeError,
    Hint,
    InputValueError,
    InvalidGraphError,
    ModelRunError,
    UnknownDeviceError,
)
from heterocc.compiler import compile_model
from heterocc.compiler.importer.onnx_tools.complaint import complaint
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.ort.lowering import OrtLowering
from heterocc.runtime import load
from heterocc.runtime.cli.reports import check_bundle
from tests.compiler.onnx_build import model, node, noise, save, value


def quantised(folder: Path) -> Path:
    """A product of 16 columns in 8 bits; ONNX Runtime says only at run time that the input has others."""
    constants = {
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.int8),
        "w": (noise(16, 4) * 20).astype(np.int8),
        "ys": np.array(1, np.float32),
    }
    nodes = [
        node("QuantizeLinear", "input s z", "q"),
        node("QGemm", "q s z w s z - ys z", "p", "product", domain="com.microsoft"),
        node("DequantizeLinear", "p ys z", "y"),
    ]
    made = model(nodes, [value("input", ["N", "L"])], [value("y", ["N", 4])], constants, domains=[("com.microsoft", 1)])
    return save(folder, made)


def test_a_shape_that_onnx_runtime_refuses_is_an_error_that_names_node_and_shape(tmp_path: Path) -> None:
    path, bundle = quantised(tmp_path), tmp_path / "m.hcb"
    with pytest.raises(ModelRunError) as caught:
        compile_model(path, bundle, devices="CPU,ORT", shapes={"input": (1, 10)})
    assert caught.value.code == "HC115" and caught.value.where == "m.onnx"
    assert "at input=1,10: QGemm 'product': GEMM: Dimension mismatch" in caught.value.message
    text = caught.value.command_text()
    assert "--shape" in text and "--no-check" in text
    assert "check=False" in str(caught.value.hint)
    assert not bundle.exists()
    assert compile_model(path, bundle, devices="CPU,ORT", shapes={"input": (1, 16)}).output == bundle


def test_without_the_check_it_compiles_with_a_warning_that_nothing_was_tried(tmp_path: Path) -> None:
    report = compile_model(
        quantised(tmp_path), tmp_path / "m.hcb", devices="CPU,ORT", shapes={"input": (1, 10)}, check=False
    )
    assert any("no partition is checked" in w and "QGemm 'product'" in w for w in report.warnings)
    assert report.unchecked


def test_inputs_on_which_the_model_does_not_run_are_followed_by_others(tmp_path: Path) -> None:
    # The model requires two rows, which only the integer of the third draw gives.
    nodes = [node("Add", "n two", "m"), node("Expand", "one m", "e"), node("Add", "e rows", "y")]
    constants = {"two": np.array([2], np.int64), "one": np.ones(1, np.float32), "rows": noise(2)}
    path = save(tmp_path, model(nodes, [value("n", [1], 7)], [value("y", None)], constants))
    assert not compile_model(path, tmp_path / "m.hcb", devices="ORT").warnings


def test_a_model_that_drawn_integers_do_not_suit_compiles_with_a_warning(tmp_path: Path) -> None:
    # Only 7 rows fit, which no draw gives, and no rule says.
    nodes = [node("Mul", "n n", "m"), node("Expand", "one m", "e"), node("MatMul", "e rows", "y")]
    constants = {"one": np.ones(1, np.float32), "rows": noise(49)}
    made = model(nodes, [value("n", [1], 7)], [value("y", [])], constants)
    bundle = tmp_path / "m.hcb"
    (warning,) = compile_model(save(tmp_path, made), bundle).warnings
    assert "no partition is checked" in warning and "give inputs that the model takes (`inputs`)" in warning
    with load(bundle) as session:
        np.testing.assert_allclose(session.run({"n": np.array([7])})["y"], noise(49).sum(), rtol=1e-4)
        assert session.variant.notes[0].startswith("not checked: all: ONNX Runtime refuses the model")


def test_a_shape_that_type_inference_refuses_is_reported_with_node_and_shape(tmp_path: Path) -> None:
    made = model([node("MatMul", "x w", "y", "product")], [value("x", ["n", "k"])], [value("y")], {"w": noise(16, 4)})
    with pytest.raises(
        InvalidGraphError, match="refuses the model at x=1,10: MatMul 'product': Incompatible"
    ) as caught:
        import_model(save(tmp_path, made), shapes={"x": (1, 10)})
    assert "FAIL" not in caught.value.message


def test_an_operator_that_nobody_has_is_named_with_its_node(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), helper.make_node("Foo", ["r"], ["y"], "last", domain="my.ops")]
    path = save(tmp_path, model(nodes, [value("x", [2])], [value("y")], domains=[("my.ops", 1)]))
    with pytest.raises(InvalidGraphError) as caught:
        import_model(path)
    assert caught.value.message == "neither ONNX nor ONNX Runtime has an operator my.ops::Foo"
    assert caught.value.where == "m.onnx: node 'last' (Foo)"
    assert "as a function of the model" in (caught.value.hint or "")


def test_a_device_that_is_unknown_is_reported_before_dynamic_dimensions(tmp_path: Path) -> None:
    path = save(tmp_path, model([node("Relu", "x", "y")], [value("x", ["n"])], [value("y")]))
    with pytest.raises(UnknownDeviceError, match="no device 'FOO'"):
        compile_model(path, tmp_path / "m.hcb", devices="FOO")


def test_a_hint_proposes_only_shapes_with_which_the_model_runs(tmp_path: Path) -> None:
    path = quantised(tmp_path)
    with pytest.raises(DynamicShapeError) as caught:
        import_model(path)
    assert isinstance(caught.value.hint, Hint)
    proposed = re.fullmatch(
        r"fix them, for example --dim (\w+)=(\d+) --dim (\w+)=(\d+); or .*", caught.value.hint.command
    )
    assert proposed is not None
    first, rows, second, columns = proposed.groups()
    dims = {first: int(rows), second: int(columns)}
    assert compile_model(path, tmp_path / "m.hcb", devices="CPU,ORT", dims=dims).output is not None


def test_a_hint_names_the_dimensions_alone_if_no_shape_runs(tmp_path: Path) -> None:
    nodes = [node("Reshape", "x s", "y")]
    made = model(nodes, [value("x", ["n", "k"])], [value("y")], {"s": np.array([1009, 1013], np.int64)})
    with pytest.raises(DynamicShapeError) as caught:
        import_model(save(tmp_path, made))
    assert "hint: fix them, with numbers in place of SIZE: --dim n=SIZE --dim k=SIZE" in caught.value.command_text()


def test_the_hint_of_a_failed_run_offers_no_variant_that_fails_as_well(tmp_path: Path) -> None:
    bundle = tmp_path / "m.hcb"
    compile_model(quantised(tmp_path), bundle, devices="CPU,ORT", shapes={"input": (1, 10)}, check=False)
    with load(bundle) as session, pytest.raises(InputValueError) as caught:
        session.run({"input": noise(1, 10)})
    assert "devices=" not in str(caught.value.hint)


def test_check_does_not_say_that_a_bundle_runs_whose_onnx_partition_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bundle = quantised(tmp_path), tmp_path / "m.hcb"
    pack = OrtLowering.lower

    def broken(self: OrtLowering, job: PartitionJob) -> LoweredPartition:
        lowered = pack(self, job)
        proto = onnx.load_from_string(lowered.code)
        proto.graph.node[0].op_type = "NoSuchOperator"
        return replace(lowered, code=proto.SerializeToString())

    monkeypatch.setattr(OrtLowering, "lower", broken)
    compile_model(path, bundle, devices="ORT", shapes={"input": (1, 16)}, check=False)
    report = check_bundle(bundle)
    assert report["intact"] and not report["runs"] and not report["order"]
    (reason,) = report["variants"][0]["reasons"]
    assert "cannot load partition 'p0'" in reason and "NoSuchOperator" in reason
    monkeypatch.undo()
    compile_model(path, bundle, devices="ORT", shapes={"input": (1, 16)})
    assert check_bundle(bundle)["runs"]


@pytest.mark.parametrize(
    ("text", "sentence", "excusable"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape node. Name:'r' Status "
            "Message: /a/reshape_helper.h:84 ns::Helper::Helper(const Shape&, bool) size != 0 was false. It is too "
            "small. Input:{2}\n",
            "Reshape 'r': It is too small. Input:{2}",
            False,
        ),
        ("1 : FAIL : Node (m) Op (MatMul) [ShapeInferenceError] Bad dimensions", "MatMul 'm': Bad dimensions", False),
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Gemm(13) node with name "
            "'g'",
            "Gemm 'g': Could not find an implementation for Gemm(13)",
            True,
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Div node. Name:'heterocc."
            "input: LSTM 'cell': input 0 needs sizes of 1 or more' Status Message: element_wise_ops.cc:703 Compute "
            "Integer division by zero",
            "LSTM 'cell': input 0 needs sizes of 1 or more",
            False,
        ),
        ("", "it gives no reason", False),
    ],
)
def test_what_onnx_runtime_says_becomes_one_sentence(text: str, sentence: str, excusable: bool) -> None:
    found = complaint(text)
    assert (found.sentence(), found.excusable) == (sentence, excusable)
