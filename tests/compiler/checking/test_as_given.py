"""The imported model is compared with the model as it was given, which all other checks take for granted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.artifacts.errors import MeaningError
from heterocc.compiler import compile_model
from heterocc.compiler.checking import ahead
from heterocc.compiler.checking.as_given import require_same_meaning
from heterocc.compiler.checking.vectors import find_vectors
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.importer.operators import opset
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import conv_chain, model, node, noise, save, value


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))


def resized(folder: Path) -> Path:
    """A Resize of operator set 10 between two nodes that change nothing of interest."""
    nodes = [
        node("Relu", "x", "r", "before"),
        node("Resize", "r scales", "u", "shrink", mode="nearest"),
        node("Neg", "u", "y", "after"),
        node("Sigmoid", "x", "z", "beside"),
    ]
    constants = {"scales": np.array([1, 1, 0.35, 0.35], np.float32)}
    made = model(nodes, [value("x", [1, 2, 7, 7])], [value("z"), value("y")], constants, opset=10, ir_version=4)
    return save(folder, made)


@pytest.fixture
def wrong_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that leaves Resize as ONNX's converter writes it, with other coordinates."""
    monkeypatch.setattr(opset, "restate_after", lambda *_: None)


@pytest.mark.usefixtures("wrong_import")
def test_an_import_that_changes_the_meaning_is_an_error_that_names_output_and_node(tmp_path: Path) -> None:
    bundle = tmp_path / "m.hcb"
    with pytest.raises(MeaningError) as caught:
        compile_model(resized(tmp_path), bundle, devices="CPU")
    assert caught.value.code == "HC903" and caught.value.where == "m.onnx"
    assert "output 'y'" in caught.value.message and "from Resize 'shrink' on" in caught.value.message
    assert "--no-check" in caught.value.command_text() and "check=False" in str(caught.value.hint)
    assert not bundle.exists()


@pytest.mark.parametrize("devices", ["CPU,ORT", "ORT"])
@pytest.mark.usefixtures("wrong_import")
def test_a_model_whose_import_changes_the_meaning_runs_as_it_was_given_in_onnx_runtime(
    tmp_path: Path, devices: str
) -> None:
    path, bundle = resized(tmp_path), tmp_path / "m.hcb"
    (warning,) = compile_model(path, bundle, devices=devices).warnings
    assert "as it was given" in warning and "output 'y'" in warning
    assert verify_bundle(bundle, path).ok


@pytest.mark.usefixtures("wrong_import")
def test_without_the_check_the_meaning_is_not_compared(tmp_path: Path) -> None:
    assert compile_model(resized(tmp_path), tmp_path / "m.hcb", devices="CPU", check=False).output is not None
    with pytest.raises(MeaningError):  # what that compile remembers says nothing about the meaning
        compile_model(resized(tmp_path), tmp_path / "m.hcb", devices="CPU")


def test_verification_with_the_model_compares_with_the_model_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bundle = resized(tmp_path), tmp_path / "m.hcb"
    compile_model(path, bundle, devices="CPU")
    assert verify_bundle(bundle, path).ok
    monkeypatch.setattr(opset, "restate_after", lambda *_: None)
    with pytest.raises(MeaningError):
        verify_bundle(bundle, path)


def test_the_comparison_is_remembered_for_the_same_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    original = ahead.require_same_meaning
    monkeypatch.setattr(ahead, "require_same_meaning", lambda *a: compared.append(a[0].name) or original(*a))
    nodes, constants = conv_chain()
    made = model(nodes, [value("x", [1, 3, 8, 8])], [value("y")], constants)
    path = save(tmp_path, made)
    for times in (1, 1):
        compile_model(path, tmp_path / "m.hcb", devices="CPU")
        assert len(compared) == times
    made.doc_string = "another file of the same meaning"
    save(tmp_path, made)
    compile_model(path, tmp_path / "m.hcb", devices="CPU")
    assert len(compared) == 2
    compile_model(path, tmp_path / "m.hcb", devices="CPU", recheck=True)
    assert len(compared) == 3


def check(folder: Path, made: onnx.ModelProto, **options: object) -> str | None:
    found = import_model(save(folder, made), **options)
    vectors = find_vectors(found, None, 0)
    return require_same_meaning(found, vectors.inputs, vectors.outputs)


def large_constants() -> onnx.ModelProto:
    nodes, constants = conv_chain()
    nodes += [node("Flatten", "y", "f"), node("MatMul", "f k", "z")]
    return model(nodes, [value("x", [1, 3, 8, 8])], [value("z")], {**constants, "k": noise(144, 40)})


def random_numbers() -> onnx.ModelProto:
    nodes = [node("RandomNormalLike", "x", "n"), node("Add", "x n", "y"), node("Neg", "x", "z")]
    return model(nodes, [value("x", [40])], [value("y"), value("z")])


def passed_through() -> onnx.ModelProto:
    constants = {"c": noise(3)}
    nodes = [node("Identity", "c", "z"), node("Relu", "x", "y")]
    return model(nodes, [value("x", [3])], [value("x", [3]), value("z"), value("y")], constants)


def half() -> onnx.ModelProto:
    f16 = onnx.TensorProto.FLOAT16
    nodes = [node("MatMul", "x w", "p"), node("Softmax", "p", "y")]
    weights = {"w": noise(16, 8).astype(np.float16)}
    return model(nodes, [value("x", [4, 16], f16)], [value("y", None, f16)], weights)


def dynamic() -> onnx.ModelProto:
    nodes = [node("Shape", "x", "s"), node("Reshape", "x s", "r"), node("Softmax", "r", "y", axis=1)]
    return model(nodes, [value("x", ["n", "c", 4])], [value("y")], opset=11)


def integers() -> onnx.ModelProto:
    constants = {"w": (noise(16, 8) * 40).astype(np.int8), "s": np.array(0.02, np.float32), "z": np.uint8(3)}
    nodes = [node("QuantizeLinear", "x s z", "q"), node("MatMulInteger", "q w z", "y")]
    i32 = onnx.TensorProto.INT32
    return model(
        nodes, [value("x", [4, 16])], [value("y", None, i32)], {k: np.asarray(v) for k, v in constants.items()}
    )


@pytest.mark.parametrize(
    "build",
    [large_constants, random_numbers, passed_through, half, dynamic, integers],
    ids=lambda build: build.__name__,
)
def test_models_that_keep_their_meaning_are_compared_and_accepted(
    tmp_path: Path, build: Callable[[], onnx.ModelProto]
) -> None:
    assert check(tmp_path, build(), keep_dims=True) is None


def test_names_of_classes_are_compared_with_the_numbers_that_replace_them(tmp_path: Path) -> None:
    names = ["cat", "dog", "owl"]
    ml = {"domain": "ai.onnx.ml"}
    nodes = [
        node(
            "LinearClassifier",
            "x",
            "label scores",
            coefficients=noise(12).tolist(),
            intercepts=[0.0, 0.1, 0.2],
            classlabels_strings=names,
            multi_class=0,
            **ml,
        ),
        node("ZipMap", "scores", "map", classlabels_strings=names, **ml),
    ]
    pairs = onnx.ValueInfoProto(name="map")
    held = pairs.type.sequence_type.elem_type.map_type
    held.key_type, held.value_type.tensor_type.elem_type = onnx.TensorProto.STRING, onnx.TensorProto.FLOAT
    outputs = [value("label", None, onnx.TensorProto.STRING), pairs]
    made = model(nodes, [value("x", [5, 4])], outputs, domains=[("ai.onnx.ml", 3)])
    assert check(tmp_path, made, only_numbers=True) is None


def test_a_model_that_only_the_import_makes_runnable_is_compiled_with_a_note(tmp_path: Path) -> None:
    # ONNX Runtime has kernels for Relu from version 6 on only, and none of Add before 7
    made = model(
        [node("Add", "x b", "y", broadcast=1, axis=0)], [value("x", [3, 2])], [value("y")], {"b": noise(3)}, opset=6
    )
    report = compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="CPU")
    (text,) = [n for n in report.notes if "not compared with the model as it was given" in n]
    assert "ONNX Runtime does not run it" in text
