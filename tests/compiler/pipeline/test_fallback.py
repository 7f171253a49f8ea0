"""Models that heterocc refuses and ONNX Runtime runs: the default list runs them there, as they were given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser
from typer.testing import CliRunner

from heterocc.artifacts.errors import InputValueError, InternalError, InvalidGraphError, PinnedDeviceError
from heterocc.compiler import compile_model, partition_model
from heterocc.compiler.cli.main import app
from heterocc.compiler.sizes import requests
from heterocc.runtime import load

GIVEN = "ONNX Runtime runs the whole model as it was given, because heterocc refuses it: "


def model_of(text: str, opset: int = 17) -> onnx.ModelProto:
    domains = f'"" : {opset}, "com.microsoft" : 1, "ai.onnx.ml" : 3'
    return parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> g {text}")


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def i64(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


ADD = "(float[3] x, float[3] w) => (float[3] y) { y = Add (x, w) }"


def repeated_weight() -> onnx.ModelProto:
    model = model_of(ADD)
    del model.graph.input[1:]
    model.graph.initializer.extend(numpy_helper.from_array(f32(3) + n, "w") for n in (1, 5))
    return model


def without_domain() -> onnx.ModelProto:
    model = model_of("(float[n] x) => (float[n] y) { y = com.microsoft.Gelu (x) }")
    del model.opset_import[1:]
    return model


def two_constants() -> onnx.ModelProto:
    model = model_of("(float[3] x) => (float[3] y) { w = Constant <value_float = 2.0> () y = Mul (x, w) }")
    model.graph.node[0].attribute.append(helper.make_attribute("value_int", 3))
    return model


def repeated_metadata() -> onnx.ModelProto:
    model = model_of("(float[3] x) => (float[3] y) { y = Relu (x) }")
    for value in "12":
        model.metadata_props.add(key="version", value=value)
    return model


def training_step() -> onnx.ModelProto:
    model = model_of("(float[3] x) => (float[3] y) { y = Relu (x) }")
    model.training_info.add().algorithm.node.add(op_type="Relu", input=["x"], output=["z"])
    return model


def rival(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def require_same(model: onnx.ModelProto, path: Path, feed: dict[str, Any]) -> None:
    with load(path) as session:
        assert session.devices == ("ORT",)
        found = session.run(feed)
    for array, wanted in zip(found.values(), rival(model, feed), strict=True):
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("make", [repeated_weight, without_domain, two_constants, repeated_metadata, training_step])
def test_a_model_that_only_heterocc_refuses_compiles_by_default(make: Any, tmp_path: Path) -> None:
    model, feed = make(), {"x": f32(3)}
    report = compile_model(model, tmp_path / "m.hcb")
    assert any(text.startswith(GIVEN) for text in report.warnings)
    require_same(model, tmp_path / "m.hcb", feed)
    with pytest.raises(InvalidGraphError):
        compile_model(model, tmp_path / "cpu.hcb", devices="CPU")


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "shape stated for an output": ("(float[n,3] x) => (float[7,7] y) { y = Relu (x) }", {"x": f32(2, 3)}),
    "dimensions of one name that differ": (
        "(float[n,m] x, float[n,m] b) => (float[n,m] y) { y = Add (x, b) }",
        {"x": f32(2, 3), "b": f32(1, 3)},
    ),
    "depth of one-hot rows": (
        "(int64[n] i, int64[k] d, float[2] v) => (float[p,q] y) { y = OneHot (i, d, v) }",
        {"i": i64(0, 2), "d": i64(3), "v": f32(2)},
    ),
    "more axes than dimensions": (
        "(float[n,m] x, int64[k] a) => (float[p,q] y) { y = ReduceSum (x, a) }",
        {"x": f32(2, 3), "a": i64(0, 0, 1)},
    ),
    "text of numbers": ("(float[n] x) => (string[n] y) { y = Cast <to = 8> (x) }", {"x": f32(3)}),
    "a choice from nothing": (
        "(bool[n,m] c, float[k,m] x, float[m] z) => (float[p,m] y) { y = Where (c, x, z) }",
        {"c": np.zeros((0, 3), bool), "x": f32(1, 3), "z": f32(3)},
    ),
    "windows over no maps": (
        "(float[n,2,h,w] x) => (float y) { p = AveragePool <kernel_shape = [2, 2], ceil_mode = 1> (x)"
        " y = ReduceSum <keepdims = 0> (p) }",
        {"x": f32(0, 2, 4, 4)},
    ),
    "parts without elements": (
        "(float[n,3] x, float[m,3] z) => (float[k,3] y) { y = Concat <axis = 0> (x, z) }",
        {"x": f32(2, 3), "z": f32(0, 3)},
    ),
    "rank of the run": (
        "(float[6] x, int64[k] s) => (float[p,q] y) { y = Reshape (x, s) }",
        {"x": f32(6), "s": i64(2, 3)},
    ),
    "width of indices": (
        "(float[a,b,c] x, int64[p,q] i) => (float[k,c] y) { y = GatherND (x, i) }",
        {"x": f32(2, 3, 4), "i": i64(0, 1, 1, 2).reshape(2, 2)},
    ),
    "an operator without a converter": (
        "(int32[n] x) => (uint32[n] y) { y = com.microsoft.MurmurHash3 (x) }",
        {"x": np.array([1, 2], np.int32)},
    ),
    "classes": (
        '(string[n] x) => (int64[n] y) { y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"],'
        " values_int64s = [4, 5]> (x) }",
        {"x": np.array(["b", "a"], object)},
    ),
    "a branch that does not fit": (
        "(float[2,3] x, bool c) => (float[p,q] y) { y = If (c) <then_branch = t () => (float[r,s] u) {"
        " k = Constant <value = int64[2] {4, 4}> () u = Reshape (x, k) }, else_branch = e () => (float[r,s] v) {"
        " v = Relu (x) }> }",
        {"x": f32(2, 3), "c": np.array(False)},
    ),
    "a body that grows": (
        "(int64 t, float[k] x) => (float[k] y) { y = Loop (t, , x) <body = b (int64 i, bool c, float[k] s) =>"
        " (bool d, float[j] u) { u = Concat <axis = 0> (s, s) d = Identity (c) }> }",
        {"t": np.array(2), "x": f32(2)},
    ),
    "a sequence": (
        "(float[n,3] x, float[m,3] z) => (float[k,3] y) { q = SequenceConstruct (x, z)"
        " y = ConcatFromSequence <axis = 0> (q) }",
        {"x": f32(2, 3), "z": f32(1, 3)},
    ),
    "constants alone": (
        "(float[n] x) => (float[n] y) { a = Constant <value = int64[2] {2, 3}> () b = ConstantOfShape (a)"
        " c = ReduceSum <keepdims = 0> (b) y = Add (x, c) }",
        {"x": f32(4)},
    ),
    "squeezed sizes": ("(float[a,b,c] x) => (float[k] y) { y = Squeeze (x) }", {"x": f32(1, 3, 1)}),
    "products of nothing": (
        "(float[n,k] x, float[l,m] z) => (float[n,m] y) { y = MatMul (x, z) }",
        {"x": f32(2, 0), "z": f32(0, 3)},
    ),
    "a tensor of any rank": (
        "(float x, int64[k] i) => (float y) { z = Unsqueeze (x, i) y = Squeeze (z) }",
        {"x": np.array(2, np.float32), "i": i64(0, 1)},
    ),
}
"""Of each kind of model that an import has refused, or a run, one that it takes today."""

OFTEN = {"shape stated for an output", "dimensions of one name that differ", "text of numbers", "windows over no maps"}
OFTEN |= {"parts without elements", "a branch that does not fit", "constants alone", "classes", "a sequence"}
"""Those that run often; the others resemble them."""


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InternalError("a rule fails")

    monkeypatch.setattr(requests, "import_model", refuse)


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize(
    "case", [case if case in OFTEN else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_whatever_the_import_refuses_runs_as_it_was_given(case: str, tmp_path: Path) -> None:
    text, feed = CASES[case]
    model = model_of(text)
    compile_model(model, tmp_path / "m.hcb")
    require_same(model, tmp_path / "m.hcb", feed)


HOSTILE: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "scores of boxes": (
        "(float[p,q,4] b, float[r,c,s] s, int64[1] n) => (int64[k,3] y) { y = NonMaxSuppression (b, s, n) }",
        {"b": np.abs(f32(1, 3, 4)), "s": f32(1, 1, 3), "n": i64(9)},
        {"s": f32(1, 1, 100_000)},
        "dimension 2 of 'scores'",
    ),
    "scores of boxes in a body": (
        "(int64 t, float[p,q,4] b, float[r,c,s] s, int64[1] n) => (int64[l,k,3] y) {"
        " y = Loop (t, ,) <body = l (int64 i, bool c) => (bool d, int64[k,3] u) {"
        " u = NonMaxSuppression (b, s, n) d = Identity (c) }> }",
        {"t": np.array(1), "b": np.abs(f32(1, 3, 4)), "s": f32(1, 1, 3), "n": i64(9)},
        {"s": f32(50_000, 1, 3)},
        "dimension 0 of 'scores'",
    ),
    "scales of rows": (
        "(float[b,s,h] x, float[b,s,h] k, float[j] g) => (float[b,s,h] y) {"
        " y = com.microsoft.SkipLayerNormalization (x, k, g) }",
        {"x": f32(1, 2, 8), "k": f32(1, 2, 8), "g": f32(8)},
        {"x": f32(1, 2, 80_000), "k": f32(1, 2, 80_000)},
        "dimension 0 of input 2",
    ),
    "matrices that are not square": (
        "(float[a,b] x) => (float[a,b] y) { y = com.microsoft.Inverse (x) }",
        {"x": np.eye(3, dtype=np.float32)},
        {"x": f32(300, 5)},
        "dimension 1 of input 0",
    ),
    "indices": (
        "(float[a,b] x, int64[c,d] i) => (float[c,d] y) { y = GatherElements (x, i) }",
        {"x": f32(4, 3), "i": i64(0, 1, 2).reshape(1, 3)},
        {"i": np.zeros((1, 300_000), np.int64)},
        "'indices' shape",
    ),
    "divisors": (
        "(int64[n] x, int64[m] z) => (int64[k] y) { y = Div (x, z) }",
        {"x": i64(-(2**63)), "z": i64(1)},
        {"z": i64(0)},
        "division by zero",
    ),
    "frames": (
        "(float[1,n,1] x, int64 s, int64 l) => (float[1,f,k,2] y) { y = STFT (x, s, , l) }",
        {"x": f32(1, 16, 1), "s": np.array(4), "l": np.array(8)},
        {"l": np.array(0)},
        "dft size",
    ),
}


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_request_for_such_a_model_is_an_error_of_the_input(case: str, tmp_path: Path) -> None:
    text, feed, changes, message = HOSTILE[case]
    model = model_of(text)
    compile_model(model, tmp_path / "m.hcb", check=False)
    require_same(model, tmp_path / "m.hcb", feed)
    with load(tmp_path / "m.hcb") as session, pytest.raises(InputValueError) as error:
        session.run({**feed, **changes})
    assert message in error.value.message


@pytest.mark.usefixtures("refusing")
def test_the_least_integer_by_minus_one_wraps_in_such_a_model(tmp_path: Path) -> None:
    """Also in a body beside a division outside: both would end the process."""
    model = model_of(
        "(int64 t, int64[n] x, int64[n] z) => (int64[n] y) { w = Div (x, z)"
        " y = Loop (t, , w) <body = b (int64 i, bool c, int64[n] s) => (bool d, int64[n] u) {"
        " u = Div (s, z) d = Identity (c) }> }"
    )
    compile_model(model, tmp_path / "m.hcb", check=False)
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"t": np.array(2), "x": i64(-(2**63)), "z": i64(-1)})["y"].tolist() == [-(2**63)]


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize(
    "text",
    [
        "(float[n] x) => (float[n] y) { y = Unknown (x) }",
        "(float[2] x, float[3] z) => (float[n] y) { y = Add (x, z) }",
        "(float[n,4,8] x, float[m,4] c, float[m,4] s) => (float[n,4,8] y) {"
        " y = RotaryEmbedding <num_heads = 1> (x, c, s) }",
        "(int64[n] x) => (int64[n] y) { l = Constant <value = int64 {4611686018427387904}> () y = Loop (l, , x)"
        " <body = b (int64 i, bool c, int64[n] s) => (bool c, int64[n] u) { u = Add (s, i) }> }",
    ],
    ids=["unknown operator", "sizes that differ", "results left unwritten", "endless loop"],
)
def test_what_onnx_runtime_refuses_or_must_not_run_is_refused_with_the_first_reason(text: str, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="a rule fails"):
        compile_model(model_of(text, 23), tmp_path / "m.hcb")


@pytest.mark.usefixtures("refusing")
def test_a_choice_of_the_user_is_not_given_up(tmp_path: Path) -> None:
    model = model_of("(float[3] x) => (float[3] y) { y = Relu (x) }")
    for choice in ({"devices": "CPU"}, {"affinity": {"y": "CPU"}}, {"weights": "int8"}):
        with pytest.raises(InternalError, match="a rule fails"):
            compile_model(model, tmp_path / "m.hcb", **choice)  # type: ignore[arg-type]


def test_a_pinned_node_that_its_device_refuses_stays_an_error(tmp_path: Path) -> None:
    model = model_of("(float[n] x) => (string[n] y) { y = Cast <to = 8> (x) }")
    with pytest.raises(PinnedDeviceError):
        compile_model(model, tmp_path / "m.hcb", affinity={"Cast_0": "CPU"})


def test_commands_say_that_the_model_runs_as_it_was_given(tmp_path: Path) -> None:
    onnx.save(without_domain(), tmp_path / "m.onnx")
    assert partition_model(tmp_path / "m.onnx").warnings[-1].startswith(GIVEN)
    asked = CliRunner().invoke(app, ["query", str(tmp_path / "m.onnx"), "--json"])
    assert asked.exit_code == 0 and GIVEN in asked.stderr
    assert [node["device"] for node in json.loads(asked.stdout)["nodes"]] == ["ORT"]
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb")
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "m.hcb")])
    assert "runs the whole model as it was given" in " ".join(shown.stdout.split())
    verified = CliRunner().invoke(app, ["verify", str(tmp_path / "m.hcb"), str(tmp_path / "m.onnx")])
    assert verified.exit_code == 0, verified.output
