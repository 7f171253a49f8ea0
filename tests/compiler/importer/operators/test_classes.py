"""Names of classes beside numbers, for bundles without ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model, verify_bundle
from heterocc.compiler.importer.pipeline import import_model
from heterocc.runtime import load
from tests.ml_models import ml_model, ml_node, reference

F32, TEXT, I64 = TensorProto.FLOAT, TensorProto.STRING, TensorProto.INT64
X = np.random.default_rng(1).standard_normal((9, 2)).astype(np.float32)
CLASSES = ["ant", "bee", "cat"]


def linear_classifier() -> onnx.ModelProto:
    """A classifier as skl2onnx writes it: string labels through an Identity, and maps from class to score."""
    nodes = [
        ml_node(
            "LinearClassifier",
            "x",
            "l z",
            coefficients=[1.0, -1.0, 0.5, 2.0, -1.0, 0.0],
            intercepts=[0.0, 0.1, 0.2],
            classlabels_strings=CLASSES,
            post_transform="SOFTMAX",
        ),
        helper.make_node("Identity", ["l"], ["label"]),
        ml_node("ZipMap", "z", "scores", classlabels_strings=CLASSES),
    ]
    proto = ml_model(nodes, {"x": (F32, ["n", 2])}, {"label": TEXT, "scores": F32})
    one = helper.make_map_type_proto(TEXT, helper.make_tensor_type_proto(F32, []))
    proto.graph.output[1].type.CopyFrom(helper.make_sequence_type_proto(one))
    return proto


def test_a_bundle_for_the_cpu_alone_has_numbers_and_the_names_of_classes(tmp_path: Path) -> None:
    path, bundle = tmp_path / "m.onnx", tmp_path / "m.hcb"
    onnx.save(linear_classifier(), path)
    report = compile_model(path, bundle, devices="CPU")
    assert any("numbers in place of names of classes" in note for note in report.notes)
    labels, maps = reference(linear_classifier())({"x": X})
    with load(bundle) as session:
        found = session.run({"x": X})
        assert session.classes == {"label": tuple(CLASSES), "scores": tuple(CLASSES)}
        assert [str(o) for o in session.outputs] == ["label: int64 [n]", "scores: float32 [n, 3]"]
    assert [CLASSES[n] for n in found["label"]] == list(labels)
    wanted = [[row[name] for name in CLASSES] for row in maps]
    np.testing.assert_allclose(found["scores"], wanted, rtol=1e-5)
    assert verify_bundle(bundle, path).ok
    with open_bundle(bundle) as opened:
        assert (opened.manifest.version.major, opened.manifest.version.minor) == (3, 1)


def test_names_that_a_table_gives_become_its_places() -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["m"], axis=1),
        ml_node("ArrayFeatureExtractor", "names m", "a"),
        helper.make_node("Cast", ["a"], ["s"], to=TEXT),
        helper.make_node("Reshape", ["s", "flat"], ["label"]),
    ]
    constants = [
        helper.make_tensor("names", TEXT, [2], [b"no", b"yes"]),
        numpy_helper.from_array(np.array([-1], np.int64), "flat"),
    ]
    proto = ml_model(nodes, {"x": (F32, ["n", 2])}, {"label": TEXT}, constants=constants)
    model = import_model(proto, keep_dims=True, only_numbers=True)
    assert model.classes == {"label": ("no", "yes")}
    assert all(value.dtype != "string" for value in model.graph.values.values())


def test_an_encoder_from_numbers_to_strings_has_its_default_last() -> None:
    node = ml_node("LabelEncoder", "x", "y", keys_int64s=[4, 7], values_strings=["a", "b"], default_string="?")
    model = import_model(ml_model([node], {"x": (I64, [3])}, {"y": TEXT}), only_numbers=True)
    assert model.classes == {"y": ("a", "b", "?")}


def test_strings_that_another_operator_reads_stay_strings() -> None:
    nodes = [
        ml_node("LabelEncoder", "x", "s", keys_int64s=[4, 7], values_strings=["a", "b"]),
        helper.make_node("StringNormalizer", ["s"], ["y"], case_change_action="UPPER"),
    ]
    model = import_model(ml_model(nodes, {"x": (I64, [3])}, {"y": TEXT}), only_numbers=True)
    assert not model.classes and model.graph.values["y"].dtype == "string"


def test_a_model_without_operators_of_onnx_itself_is_imported_for_the_cpu_alone() -> None:
    nodes = [
        ml_node("LinearClassifier", "x", "l z", coefficients=[1.0, -1.0], intercepts=[0.0], classlabels_ints=[0, 1]),
        ml_node("ZipMap", "z", "scores", classlabels_int64s=[0, 1]),
    ]
    proto = ml_model(nodes, {"x": (F32, [3, 2])}, {"l": I64, "scores": F32})
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    one = helper.make_map_type_proto(I64, helper.make_tensor_type_proto(F32, []))
    proto.graph.output[1].type.CopyFrom(helper.make_sequence_type_proto(one))
    assert import_model(proto, only_numbers=True).graph.values["scores"].dtype == "float32"
