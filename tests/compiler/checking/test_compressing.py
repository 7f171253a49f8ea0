import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model, partition_model
from heterocc.compiler.importer.compressed import compress, compressed, large_products
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.weight_form import WeightForm
from heterocc.runtime import load
from tests.compiler.small import save

INT4, INT8 = WeightForm(4), WeightForm(8)


def two_products(path: Path, inner: int = 160) -> Path:
    """x[n,128] → MatMul, Relu, Gemm with a transposed weight and a bias → y[n,96]."""
    rng = np.random.default_rng(5)
    constants = {
        "up": rng.standard_normal((128, inner)).astype(np.float32) / 11,
        "down": rng.standard_normal((200, inner)).astype(np.float32) / 12,
        "bias": rng.standard_normal(200).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["a"], name="layers/up"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "down", "bias"], ["y"], name="layers/down", transB=1),
    ]
    return save(path, nodes, {"x": ["n", 128]}, {"y": ["n", 200]}, constants)


def expected(path: Path, x: np.ndarray, form: WeightForm) -> np.ndarray:
    """The result of `two_products` with compressed weights, in float64."""
    arrays = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    up, down = (compressed(np.ascontiguousarray(w), form).numbers() for w in (arrays["up"], arrays["down"].T))
    middle = np.maximum(x.astype(np.float64) @ up.astype(np.float64), 0)
    found: np.ndarray = middle @ down.astype(np.float64) + arrays["bias"]
    return found


@pytest.mark.parametrize("form", [INT4, INT8, dataclasses.replace(INT4, block=128)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_codes_stand_for_the_weight_within_half_a_step(form: WeightForm, dtype: type) -> None:
    weight = np.random.default_rng(0).standard_normal((100, 7)).astype(dtype)
    codes = compressed(weight, form)
    terms = np.arange(100) // form.block
    step = np.abs(codes.scales.astype(np.float32).T[terms])
    # A zero point is rounded, too, so that the ends of a block may be half a step further away.
    assert (np.abs(codes.numbers() - weight) <= step * (1.01 if form.bits == 4 else 0.52)).all()
    assert codes.nbytes < weight.nbytes


@pytest.mark.parametrize(("text", "form"), [("int4", INT4), ("int8:block=64", WeightForm(8, 64))])
def test_a_bundle_has_compressed_weights_and_computes_with_them(tmp_path: Path, text: str, form: WeightForm) -> None:
    model = two_products(tmp_path / "m.onnx")
    report = compile_model(model, tmp_path / "m.hcb", devices="CPU", weights=text, measure=False)
    done = report.weights
    assert done is not None and [p.product.node for p in done.products] == ["layers/up", "layers/down"]
    before, after = done.sizes
    assert before == (128 * 160 + 160 * 200) * 4 and after < before * (0.17 if form.bits == 4 else 0.3)
    bundle = open_bundle(tmp_path / "m.hcb")
    assert sum(w.nbytes for w in bundle.manifest.weights) < after * 1.1 + 2048
    x = np.random.default_rng(1).standard_normal((3, 128)).astype(np.float32)
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"x": x})["y"]
    assert np.allclose(found, expected(model, x, form), rtol=1e-4, atol=1e-4)
    written = json.loads(json.dumps(report.to_json()["weights"]))
    assert written["bytes_after"] == after and written["outputs"][0]["name"] == "y"
    assert written["outputs"][0]["snr_db"] > (15 if form.bits == 4 else 35)
    assert any("become" in note for note in report.notes)


def test_weights_that_a_pattern_fits_stay_as_they_are(tmp_path: Path) -> None:
    model = two_products(tmp_path / "m.onnx")
    report = partition_model(model, devices="CPU", weights="int4", weights_keep="*/down")
    assert report.weights is not None and report.weights.kept == ("layers/down",)
    types = [node.op_type for node in report.plan.graph.nodes]
    assert "com.microsoft::MatMulNBits" in types and "Gemm" in types
    by_weight = partition_model(model, devices="CPU", weights="int4", weights_keep=["up"])
    assert by_weight.weights is not None and by_weight.weights.kept == ("layers/up",)


def test_a_product_that_would_lose_too_much_is_excluded(tmp_path: Path) -> None:
    """Each block has one large number, which no factor meets: the codes of the others have no bits left."""
    rng = np.random.default_rng(2)
    spiked = rng.standard_normal((128, 160)).astype(np.float32)
    spiked[::32] *= 1000
    plain = rng.standard_normal((160, 130)).astype(np.float32)
    mask = np.ones(128, np.float32)
    mask[::32] = 0
    nodes = [
        helper.make_node("Mul", ["x", "mask"], ["m"]),
        helper.make_node("MatMul", ["m", "spiked"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "plain"], ["y"], name="second"),
    ]
    constants = {"mask": mask, "spiked": spiked, "plain": plain}
    model = save(tmp_path / "m.onnx", nodes, {"x": [4, 128]}, {"y": [4, 130]}, constants)
    report = partition_model(model, devices="CPU", weights="int4")
    assert report.weights is not None
    assert [p.product.node for p in report.weights.excluded] == ["first"]
    assert [p.product.node for p in report.weights.products] == ["second"]
    assert any("'first' stays as it is" in note for note in report.weights.notes())


def test_weights_behind_transposes_and_constants_and_in_branches_are_found() -> None:
    rng = np.random.default_rng(3)
    tied = rng.standard_normal((256, 64)).astype(np.float32)
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["inner"], name="inside")],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["outer"], name="otherwise")],
        "other",
        [],
        [helper.make_tensor_value_info("outer", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(tied)),
        helper.make_node("Transpose", ["c"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["logits"], name="head"),
        helper.make_node("MatMul", ["x", "small"], ["s"], name="little"),
        helper.make_node("MatMul", ["x", "x2"], ["d"], name="dynamic"),
        helper.make_node("If", ["which"], ["y"], then_branch=branch, else_branch=other),
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    weights = {"w": tied.T.copy(), "small": tied[:64, :8]}
    assert sorted((p.node, p.turned, p.inner) for p in large_products(graph, weights)) == [
        ("head", True, False),
        ("inside", False, True),
        ("otherwise", False, True),
    ]
    model = helper.make_model(graph)
    compress(model, weights, INT4)
    assert [n.op_type for n in model.graph.node].count("MatMulNBits") == 1
    bodies = [a.g for a in model.graph.node[-1].attribute]
    first, second = (body.node[0] for body in bodies)
    assert first.op_type == second.op_type == "MatMulNBits" and first.input[1:] == second.input[1:]
    assert "w" not in weights and {o.domain for o in model.opset_import} >= {"com.microsoft"}


def test_the_digest_of_a_model_depends_on_the_form_of_its_weights(tmp_path: Path) -> None:
    from heterocc.compiler.importer.reading.source import ModelSource

    path = two_products(tmp_path / "m.onnx")
    forms = [None, INT4, INT8, INT4.keeping(frozenset({"layers/up"}))]
    digests = {import_model(ModelSource(path, weights=form), keep_dims=True).sha256 for form in forms}
    assert len(digests) == len(forms)


@pytest.mark.parametrize("text", ["int3", "int4:block=20", "int4:blocks=32", "int8:block", "int4:accuracy_level=2", ""])
def test_another_form_of_weights_is_an_error_that_names_the_forms(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        compile_model(two_products(tmp_path / "m.onnx"), tmp_path / "m.hcb", weights=text)
    assert "int4" in str(caught.value.hint) and not (tmp_path / "m.hcb").exists()


def test_a_pattern_that_fits_nothing_and_one_without_a_form_are_errors(tmp_path: Path) -> None:
    model = two_products(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="'head\\*' fits no large product") as caught:
        partition_model(model, weights="int4", weights_keep="head*")
    assert "'layers/up'" in str(caught.value.hint)
    with pytest.raises(UsageError, match="without weights"):
        partition_model(model, weights_keep="head*")


def test_a_model_without_large_products_compiles_with_a_warning(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 3]}, {"y": [2, 3]})
    report = partition_model(model, devices="CPU", weights="int8")
    assert report.weights is not None and not report.weights.products


def test_a_model_without_keys_and_values_compiles_with_a_warning_if_they_are_to_be_narrow() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Relu (x) }'
    )
    report = compile_model(model, "m.hcb", properties="CPU.kv_precision=f16", stop_after="import")
    assert report.warnings == (
        "no keys and values become float16: the model has none in float32 that it takes and returns",
    )
