"""Initializers that the model lists as inputs, too, may be left out of a run or replaced, as in ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from heterocc.artifacts.errors import BundleError, FeedError, UsageError
from heterocc.compiler import compile_model
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.cli.main import app
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.reading import defaults
from heterocc.runtime import Session, load
from heterocc.runtime.feeds import Array
from heterocc.runtime.serve.errors import RequestError
from heterocc.runtime.serve.inference import Decode, Input, Request, Work, check_request, share_of
from heterocc.runtime.serve.models import Served, Tensor
from heterocc.runtime.serve.workers import Line
from tests.artifacts.bundle_forge import contents, pack, rehash, with_manifest
from tests.compiler.onnx_build import branch, model, node, noise, value
from tests.reference import reference_session

X = noise(4, 8)
GEMM = [node("Gemm", "x w b", "g"), node("Relu", "g", "y")]
WEIGHTS = {"w": noise(8, 3, seed=1), "b": noise(3, seed=2)}


def listing(proto: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The model with the initializers of these names among its inputs."""
    shapes = {t.name: (t.data_type, list(t.dims)) for t in proto.graph.initializer}
    proto.graph.input.extend(onnx.helper.make_tensor_value_info(name, *shapes[name]) for name in names)
    return proto


@pytest.mark.parametrize("dims", [[4, 8], ["n", 8]], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("devices", ["CPU", "ORT", "CPU,ORT"])
def test_a_run_may_leave_out_or_replace_each_of_them(tmp_path: Path, devices: str, dims: list[int | str]) -> None:
    proto = listing(model(GEMM, [value("x", dims)], [value("y")], WEIGHTS, ir_version=8), "w", "b")
    report = compile_model(proto, tmp_path / "m.hcb", devices=devices)
    assert not any("stay constant" in note for note in report.notes)
    feeds = [{"x": X}, {"x": X, "w": noise(8, 3, seed=5)}, {"x": X, "b": noise(3, seed=6)}, {"x": X}]
    with load(tmp_path / "m.hcb") as session:
        for feed in [*feeds, {**feeds[1], **feeds[2]}]:
            (right,) = reference_session(proto).run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], right, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(session.run(["y"], feed)[0], right, rtol=1e-4, atol=1e-5)
        with pytest.raises(FeedError, match="input 'x' is missing"):
            session.run({"w": WEIGHTS["w"]})
        with pytest.raises(FeedError, match="'w' must have shape"):
            session.run({"x": X, "w": noise(3, 3)})
        if dims == [4, 8]:
            binding = session.bind()
            for feed in (feeds[0], feeds[1]):
                for name, array in feed.items():
                    binding.inputs[name] = array
                np.testing.assert_allclose(binding.run()["y"], session.run(feed)["y"], rtol=1e-5)
    for number, feed in enumerate(feeds[:2] if devices == "CPU" else ()):
        onnx.save(proto, tmp_path / "m.onnx")
        np.savez(tmp_path / f"{number}.npz", **feed)
        assert verify_bundle(tmp_path / "m.hcb", tmp_path / "m.onnx", inputs=[str(tmp_path / f"{number}.npz")]).ok
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "m.hcb")]).stdout
    assert shown.count("may be left out") == 2 and "x: float32" in shown


def test_integers_that_are_added_may_be_replaced(tmp_path: Path) -> None:
    constants = {"k": np.array([1, 2], np.int64), "one": np.array(1, np.int64)}
    nodes = [node("Add", "x k", "a"), node("Mul", "a one", "y")]
    proto = listing(
        model(nodes, [value("x", [2], onnx.TensorProto.INT64)], [value("y", None, 7)], constants, ir_version=8), "k"
    )
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        x = np.array([5, 6])
        assert session.run({"x": x})["y"].tolist() == [6, 8]
        assert session.run({"x": x, "k": np.array([10, 20])})["y"].tolist() == [15, 26]


def test_a_binding_of_truths_begins_with_false_and_with_the_defaults(tmp_path: Path) -> None:
    truth = onnx.TensorProto.BOOL
    constants = {"k": np.array([True, False, True])}
    proto = model(
        [node("Or", "x k", "y")], [value("x", [3], truth)], [value("y", None, truth)], constants, ir_version=8
    )
    compile_model(listing(proto, "k"), tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        assert session.bind().run()["y"].tolist() == [True, False, True]


def test_before_ir_version_4_all_are_constants() -> None:
    proto = listing(model(GEMM, [value("x", [4, 8])], [value("y")], WEIGHTS, opset=11, ir_version=3), "w", "b")
    imported = import_model(proto)
    assert len(imported.graph.inputs) == 1 and not imported.defaults


def test_weights_of_an_exporter_that_lists_all_stay_constants_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "MOST_BYTES", 64)
    all_listed = listing(model(GEMM, [value("x", [4, 8])], [value("y")], WEIGHTS, ir_version=8), "w", "b")
    imported = import_model(all_listed)
    assert len(imported.graph.inputs) == 1
    assert any(note.startswith("'w' and 1 other stay constant") for note in imported.notes)
    assert imported.held == ("w", "b")
    one_listed = listing(model(GEMM, [value("x", [4, 8])], [value("y")], WEIGHTS, ir_version=8), "w")
    assert len(import_model(one_listed).graph.inputs) == 2


def test_what_determines_shapes_stays_constant_and_what_a_branch_reads_may_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "FEW_NODES", 0)
    constants = {"shape": np.array([2, 16]), "axes": np.array([0]), "k": noise(16), "v": noise(16, seed=3)}
    nodes = [
        node("Reshape", "x shape", "r"),
        node("Add", "r v", "a"),
        node(
            "If",
            "c",
            "y",
            then_branch=branch("then", node("Add", "a k", "s"), node("ReduceSum", "s axes", "r1"), output="r1"),
            else_branch=branch("else", node("Sub", "a k", "r2"), output="r2"),
        ),
    ]
    inputs = [value("x", [4, 8]), value("c", [], 9)]
    proto = listing(model(nodes, inputs, [value("y")], constants, ir_version=8), *constants)
    imported = import_model(proto, only_numbers=True)
    assert [imported.sources[name] for name in imported.graph.inputs] == ["x", "c", "k", "v"]
    assert any("'shape' and 1 other stay constant" in note for note in imported.notes)
    beside_ort = import_model(proto)
    assert [beside_ort.sources[name] for name in beside_ort.graph.inputs] == ["x", "c", *constants]


def test_the_one_of_several_that_is_listed_is_meant_though_it_determines_a_shape(tmp_path: Path) -> None:
    constants = {"k": np.array([2]), "v": noise(8), "w": noise(8, seed=3)}
    nodes = [node("Add", "x v", "a"), node("Mul", "a w", "m"), node("TopK", "m k", "y places")]
    proto = listing(model(nodes, [value("x", [4, 8])], [value("y")], constants, ir_version=8), "k")
    compile_model(proto, tmp_path / "m.hcb")
    with load(tmp_path / "m.hcb") as session:
        for feed in ({"x": X}, {"x": X, "k": np.array([5])}):
            (right,) = reference_session(proto).run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], right, rtol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "constants", "given"),
    [
        ([node("TopK", "x k", "y places")], {"k": np.array([2])}, {"k": np.array([5])}),
        ([node("Slice", "x begin end", "y")], {"begin": np.array([1]), "end": np.array([3])}, {"end": np.array([4])}),
        ([node("Reshape", "x shape", "y")], {"shape": np.array([2, 16])}, {"shape": np.array([-1, 4])}),
        (
            [node("MatMul", "x w", "p"), node("Pad", "p around", "y")],
            {"w": noise(8, 3, seed=1), "around": np.array([0, 1, 0, 0])},
            {"around": np.array([1, 0, 2, 1])},
        ),
    ],
    ids=["TopK", "Slice", "Reshape", "Pad"],
)
@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT"])
def test_settings_of_a_model_of_a_few_nodes_may_be_replaced(
    tmp_path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    given: dict[str, np.ndarray],
    devices: str,
) -> None:
    proto = listing(model(nodes, [value("x", [4, 8])], [value("y")], constants, ir_version=8), *constants)
    compile_model(proto, tmp_path / "m.hcb", devices=devices, measure=False)
    with load(tmp_path / "m.hcb") as session:
        for feed in ({"x": X}, {"x": X, **given}):
            (right,) = reference_session(proto).run(["y"], feed)
            np.testing.assert_allclose(session.run(feed)["y"], right, rtol=1e-4, atol=1e-5)


def test_settings_among_many_nodes_may_be_replaced_beside_onnx_runtime(tmp_path: Path) -> None:
    constants = {"w": noise(8, 8, seed=1), "shape": np.array([2, 16]), "axes": np.array([1]), "k": np.array([3])}
    chain = [node(op, f"v{i}" if i else "x", f"v{i + 1}") for i, op in enumerate(["Relu", "Neg", "Abs", "Exp"] * 2)]
    nodes = [*chain, node("MatMul", "v8 w", "m"), node("Reshape", "m shape", "r"), node("ReduceSum", "r axes", "s")]
    proto = listing(
        model([*nodes, node("TopK", "r k", "t places"), node("Add", "t s", "y")], [value("x", [4, 8])], [value("y")],
              constants, ir_version=8), *constants,
    )  # fmt: skip
    compile_model(proto, tmp_path / "m.hcb", devices="CPU,ORT", measure=False)
    with load(tmp_path / "m.hcb") as session:
        for given in (
            {},
            {"k": np.array([5])},
            {"shape": np.array([-1, 4]), "axes": np.array([1]), "k": np.array([2])},
        ):
            (right,) = reference_session(proto).run(["y"], {"x": X, **given})
            np.testing.assert_allclose(session.run({"x": X, **given})["y"], right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [[4, 8], ["n", 8]], ids=["fixed", "dynamic"])
def test_constants_of_a_model_that_lists_most_are_replaced_in_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dims: list[int | str]
) -> None:
    monkeypatch.setattr(defaults, "MOST_BYTES", 64)
    constants = {**WEIGHTS, "shape": np.array([0, -1])}
    nodes = [node("Gemm", "x w b", "g"), node("Reshape", "g shape", "y")]
    proto = listing(model(nodes, [value("x", dims)], [value("y", None)], constants, ir_version=8), *constants)
    report = compile_model(proto, tmp_path / "m.hcb", devices="CPU,ORT", measure=False)
    assert not report.warnings and any("is computed by ONNX Runtime" in note for note in report.notes)
    given = {"w": noise(8, 3, seed=5), "b": noise(3, seed=6), "shape": np.array([3, -1])}
    with load(tmp_path / "m.hcb", profile=True) as session:
        assert [info.name for info in session.inputs] == ["x"]
        for names in ((), ("w",), ("b", "shape"), ()):
            feed = {"x": X, **{name: given[name] for name in names}}
            (right,) = reference_session(proto).run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], right, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(session.run(["y"], feed)[0], right, rtol=1e-4, atol=1e-5)
        with pytest.raises(FeedError, match="'w' must have shape"):
            session.run({"x": X, "w": noise(3, 3)})
        with pytest.raises(FeedError, match="input 'x' is missing"):
            session.run({"w": given["w"]})
        with pytest.raises(FeedError, match="the model has no input 'v'"):
            session.run({"x": X, "v": given["w"]})
        with pytest.raises(FeedError, match="cannot be bound"):  # `shape` may give the result any
            session.bind(replacing=["w"])
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "m.hcb")]).stdout
    assert "constants that a run may replace, in ONNX Runtime: w, b, shape" in shown


def test_a_binding_has_the_constants_that_it_is_to_replace_as_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "MOST_BYTES", 64)
    proto = listing(model(GEMM, [value("x", [4, 8])], [value("y")], WEIGHTS, ir_version=8), *WEIGHTS)
    compile_model(proto, tmp_path / "m.hcb", devices="CPU,ORT", measure=False)
    with load(tmp_path / "m.hcb") as session:
        assert [str(constant) for constant in session.replaceable] == ["w: float32 [8, 3]", "b: float32 [3]"]
        assert list(session.bind().inputs) == ["x"]
        binding = session.bind(replacing=["w"])
        binding.inputs["x"] = X
        for w in (None, noise(8, 3, seed=5), WEIGHTS["w"]):
            if w is not None:
                binding.inputs["w"] = w
            (right,) = reference_session(proto).run(None, {"x": X} if w is None else {"x": X, "w": w})
            np.testing.assert_allclose(binding.run()["y"], right, rtol=1e-4, atol=1e-5)
        for wrong in (["v"], ["x"], "w"):
            with pytest.raises(FeedError, match="constant"):
                session.bind(replacing=wrong)
        with pytest.raises(UsageError, match="either shapes or constants"):
            session.bind({"x": (4, 8)}, replacing=["w"])
        with pytest.raises(UsageError, match="constants to replace or a state"):
            session.bind(state={}, replacing=["w"])  # type: ignore[call-overload]
        _check_requests(session, proto)


def _decoder(array: Array) -> Decode:
    return lambda datatype, shape: array


def _check_requests(session: Session, proto: onnx.ModelProto) -> None:
    """A request of the service may give a constant, too, and runs alone then."""
    known = {t.name: Tensor(t.name, "FP32", t.shape) for t in (*session.inputs, *session.replaceable)}
    y = {"y": Tensor("y", "FP32", (4, 3))}
    line = Line("m", 8)
    served = Served("m", "1", Path("m.hcb"), (0, 0, 0, 0), session, line, {"x": known.pop("x")}, y, known)
    w = noise(8, 3, seed=7)
    x, replaced, wrong = (
        Input(name, "FP32", array.shape, _decoder(array), array.nbytes)
        for name, array in (("x", X), ("w", w), ("w", w[:4]))
    )
    request = Request("", (x, replaced), None, None)
    check_request(served, request)
    (right,) = reference_session(proto).run(None, {"x": X, "w": w})
    np.testing.assert_allclose(Work(served, request, lambda found: found[0].array)(), right, rtol=1e-4, atol=1e-5)
    assert share_of(served, request) is None and share_of(served, Request("", (x,), None, None)) is not None
    with pytest.raises(RequestError, match="must have the shape"):
        check_request(served, Request("", (x, wrong), None, None))


@pytest.mark.parametrize(
    ("default", "given", "nodes"),
    [
        (np.array(["a", "b", "c"], object), np.array(["d", "e", "f"]), [node("Gather", "k i", "y")]),
        (
            np.array([1, 2, 3], ml_dtypes.bfloat16),
            np.array([4, 5, 6], ml_dtypes.bfloat16),
            [node("Cast", "k", "f", to=1), node("Gather", "f i", "y")],
        ),
    ],
    ids=["texts", "bfloat16"],
)
def test_texts_and_dtypes_that_numpy_lacks_are_replaced_in_onnx_runtime(
    tmp_path: Path, default: np.ndarray, given: np.ndarray, nodes: list[onnx.NodeProto]
) -> None:
    kind = onnx.TensorProto.STRING if default.dtype == object else onnx.TensorProto.FLOAT
    ends = [value("i", [2], onnx.TensorProto.INT64)], [value("y", [2], kind)]
    compile_model(listing(model(nodes, *ends, {"k": default}, opset=21, ir_version=10), "k"), tmp_path / "m.hcb")
    with load(tmp_path / "m.hcb") as session:
        for feed, k in (({}, default), ({"k": given}, given), ({"k": default}, default), ({}, default)):
            assert session.run({"i": np.array([2, 0]), **feed})["y"].tolist() == [k[2], k[0]]


def test_without_onnx_runtime_the_error_says_that_a_constant_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "MOST_BYTES", 64)
    proto = listing(model(GEMM, [value("x", [4, 8])], [value("y")], WEIGHTS, ir_version=8), "w", "b")
    compile_model(proto, tmp_path / "m.hcb", devices="CPU", measure=False)
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": X})["y"].shape == (4, 3)
        with pytest.raises(FeedError, match="'w' is a constant of the bundle") as caught:
            session.run({"x": X, "w": WEIGHTS["w"]})
    assert "devices='CPU,ORT'" in str(caught.value)


def test_a_default_of_another_shape_than_the_input_is_an_error_of_the_bundle(tmp_path: Path) -> None:
    proto = listing(model(GEMM, [value("x", [4, 8])], [value("y")], WEIGHTS, ir_version=8), "w")
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    members = contents(tmp_path / "m.hcb")
    manifest = json.loads(members["manifest.json"])
    manifest["model"]["defaults"] = {"w": manifest["golden"]["inputs"]["x"]}
    rehash(manifest, members)
    pack(tmp_path / "wrong.hcb", with_manifest(members, json.dumps(manifest).encode()))
    with pytest.raises(BundleError, match="the default of input 'w' must have shape"):
        load(tmp_path / "wrong.hcb")
