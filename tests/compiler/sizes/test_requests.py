"""Several shapes of inputs in one bundle: options, compile, reports, and the commands on the bundle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from typer.testing import CliRunner, Result

from heterocc.artifacts.errors import FeedError, HeteroccError, Hint, ShapeOptionError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import CompileOptions, compile_model, partition_model, verify_bundle
from heterocc.compiler.cli.main import app
from heterocc.compiler.cli.options import parse_hints, parse_shape_sets
from heterocc.compiler.devices.lists import parse_list, takes_dynamic
from heterocc.compiler.sizes.requests import shape_requests
from heterocc.runtime import load
from tests.compiler.small import save

WEIGHT = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)


def product(path: Path, dims: tuple[int | str | None, ...] = ("batch", 8)) -> Path:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], name="p"), helper.make_node("Relu", ["p"], ["y"], name="r")]
    return save(path, nodes, {"x": dims}, {"y": (dims[0], 256)}, {"w": WEIGHT})  # type: ignore[dict-item]


def heterocc(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of 1 and 6, and any from 1 to 8."""
    path = tmp_path_factory.mktemp("bundle") / "m.hcb"
    options = CompileOptions(devices="CPU", hints={"batch": (1, 6)}, dims={"batch": (1, 8)})
    report = compile_model(product(path.with_suffix(".onnx")), path, options)
    assert report.variants == ("main", "main@batch=6", "main@any")
    shapes = [plan["shapes"] for plan in report.to_json()["plans"]]  # type: ignore[index, union-attr, attr-defined]
    assert shapes == [{"x": [1, 8]}, {"x": [6, 8]}, {"x": ["batch", 8]}]
    assert report.lines()[1].startswith("main@batch=6: 2 nodes: CPU 2")
    return path


@pytest.mark.parametrize(
    ("devices", "dynamic"),
    [
        ("CPU,ORT", True), (("CPU", "ort"), True), ("HETERO:GPU,ORT", True), ("AUTO:GPU,CPU,ORT", True),
        ("AUTO,ORT", True), ("MULTI:GPU,CPU,ORT", True), ("AUTO", True), ("MULTI:GPU,CPU", True), ("", True),
        ("MULTI", True), ("MULTI:", True), ("HETERO:", True), ("AUTO:-GPU", True), ("AUTO:-CPU", False),
        ("MULTI:GPU", False),
        ("AUTO:CPU,ORT,-ORT", True), (("CPU",), True), ("GPU,CPU", True), ("AUTO:GPU,ORT,-ORT", False), ("GPU", False),
    ],
)  # fmt: skip
def test_dimensions_stay_dynamic_if_the_cpu_or_onnx_runtime_is_listed(
    devices: str | tuple[str, ...], dynamic: bool
) -> None:
    assert takes_dynamic([parse_list(devices)]) is dynamic
    assert not takes_dynamic([parse_list(devices), parse_list("GPU")])


def test_hinted_and_other_sizes_run_as_in_onnx_runtime(bundle: Path) -> None:
    reference = onnxruntime.InferenceSession(bundle.with_suffix(".onnx"), providers=["CPUExecutionProvider"])
    with load(bundle) as session:
        assert str(session.inputs[0]) == "x: float32 [batch (1 to 8), 8]"
        assert str(session.outputs[0]) == "y: float32 [batch, 256]"
        for size, variant in ((1, "main"), (6, "main@batch=6"), (3, "main@any")):
            x = np.random.default_rng(size).standard_normal((size, 8)).astype(np.float32)
            np.testing.assert_allclose(
                session.run({"x": x})["y"], reference.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5
            )
            assert session.variant.name == variant
        with pytest.raises(FeedError, match="dimension 'batch' of input 'x' must be 1 to 8, got 9"):
            session.run({"x": np.zeros((9, 8), np.float32)})


def test_weights_are_stored_once_and_are_in_memory_once(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        params = [[i for part in v.partitions for i in part.params] for v in opened.manifest.variants]
        assert params[0] == params[1]
        assert sum({w.offset: w.nbytes for w in opened.manifest.weights}.values()) == WEIGHT.nbytes
    with load(bundle) as session:
        before = session.allocated_bytes
        session.run({"x": np.zeros((6, 8), np.float32)})
        assert session.allocated_bytes - before < WEIGHT.nbytes + 16384  # values only, or another layout of the weight


def test_inspect_check_verify_run_and_bench_follow(bundle: Path) -> None:
    shown = heterocc("inspect", bundle).stdout
    assert "input     x: float32[batch, 8] (batch 1 to 8)" in shown and "golden    seed 0, for 3 shapes" in shown
    assert "  shapes  x=6,8" in shown
    assert "variant main@batch=6 for x=6,8: can run here" in heterocc("check", bundle).stdout
    for found in (verify_bundle(bundle, None), verify_bundle(bundle, bundle.with_suffix(".onnx"))):
        assert found.ok and [d.name for d in found.differences][:2] == ["y at x=1,8", "y at x=6,8"]
    for options, shape in ((["--dim", "batch=6"], [6, 256]), (["--shape", "x=6,8"], [6, 256]), ([], [1, 256])):
        done = json.loads(heterocc("run", bundle, "--json", *options).stdout)
        assert done["outputs"]["y"]["shape"] == shape
    assert heterocc("bench", bundle, "--dim", "batch=6", "-n", "2").exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dim", "batch=9"], "must be 1 to 8, got 9"),
        (["--dim", "bath=6"], "did you mean 'batch'?"),
        (["--shape", "z=6,8"], "no input 'z'"),
        (["--shape", "x=6"], "has 1 dimension, the input has 2"),
    ],
)
def test_a_request_that_the_bundle_does_not_allow_is_an_error(bundle: Path, options: list[str], words: str) -> None:
    done = heterocc("run", bundle, *options)
    assert done.exit_code != 0 and words in done.output


def test_sets_of_shapes_need_no_names(tmp_path: Path) -> None:
    path = product(tmp_path / "m.onnx", (None, 8))
    done = heterocc("compile", path, "--shapes", "x=1,8", "--shapes", "x=4,8", "-d", "CPU", "-o", tmp_path / "m.hcb")
    assert done.exit_code == 0 and "main@x=4x8" in done.stdout, done.output
    with load(tmp_path / "m.hcb") as session:
        for size in (4, 2):
            assert session.run({"x": np.ones((size, 8), np.float32)})["y"].shape == (size, 256)


def test_sizes_that_the_cpu_does_not_take_are_left_out_with_a_note(tmp_path: Path) -> None:
    nodes = [helper.make_node("Det", ["x"], ["y"], name="volume")]
    path = save(tmp_path / "m.onnx", nodes, {"x": ("batch", "batch")}, {"y": ()}, {})
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU", hints={"batch": (2, 4)})
    assert report.variants == ("main", "main@batch=4")
    (note,) = [n for n in report.notes if n.startswith("no code for sizes other than those given: ")]
    assert "volume" in note
    with load(tmp_path / "m.hcb") as session:
        assert str(session.inputs[0]) == "x: float32 [batch (2 or 4), batch (2 or 4)]"
        with pytest.raises(FeedError, match="dimension 'batch' of input 'x' must be 2 or 4, got 6"):
            session.run({"x": np.ones((6, 6), np.float32)})


def test_every_choice_of_devices_has_all_shapes(tmp_path: Path) -> None:
    path = product(tmp_path / "m.onnx")
    compile_model(path, tmp_path / "m.hcb", devices="CPU", variants=("ORT",), hints={"batch": (1, 2, 3)}, check=False)
    with open_bundle(tmp_path / "m.hcb") as opened:
        manifest = opened.manifest
    assert [v.name for v in manifest.choices] == ["main", "ort"]
    names = [[v.name for v in manifest.with_shapes(choice)] for choice in manifest.choices]
    ends = ["", "@batch=2", "@batch=3", "@any"]
    assert names == [[f"{choice}{end}" for end in ends] for choice in ("main", "ort")]
    for devices in ("CPU", "ORT", "main", "AUTO"):
        with load(tmp_path / "m.hcb", devices) as session:
            assert session.run({"x": np.ones((3, 8), np.float32)})["y"].shape == (3, 256)
            assert session.run({"x": np.ones((1, 8), np.float32)})["y"].shape == (1, 256)


def test_given_inputs_are_used_for_their_shapes(tmp_path: Path) -> None:
    path, inputs = product(tmp_path / "m.onnx"), tmp_path / "in.npz"
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    np.savez(inputs, x=x)
    compile_model(path, tmp_path / "m.hcb", devices="ORT", hints={"batch": (1, 4)}, inputs=inputs)
    with open_bundle(tmp_path / "m.hcb") as opened:
        first, second, _ = (opened.array(golden.inputs["x"]) for golden in opened.manifest.all_goldens)
        assert first.shape == (1, 8)
        np.testing.assert_array_equal(second, x)
    with pytest.raises(FeedError, match=r"must have shape \[1, 8\], got \[4, 8\]"):
        compile_model(path, tmp_path / "m.hcb", devices="CPU", hints={"batch": (1, 2)}, inputs=inputs)


def test_combinations_are_limited_and_may_not_repeat_or_contradict(tmp_path: Path) -> None:
    path = product(tmp_path / "m.onnx")
    cases: list[tuple[dict[str, object], str]] = [
        ({"hints": {"a": range(5), "b": range(4)}}, "20 combinations of shapes are requested, more than 16"),
        ({"hints": {"batch": (1, 8)}, "dims": {"batch": 8}}, "is fixed to 8 and has hints"),
        ({"shape_sets": [{"x": (1, 8)}, {"x": (1, 8)}]}, "x=1x8 and x=1x8 are the same shapes"),
        ({"shape_sets": [{"x": (1, 8)}], "shapes": {"x": (2, 8)}}, "is fixed, and given in a set"),
        ({"hints": {"bath": (1, 8)}}, "no dimension of the model's inputs is named 'bath' at bath=1"),
    ]
    for options, words in cases:
        with pytest.raises(ShapeOptionError, match=words):
            compile_model(path, tmp_path / "m.hcb", devices="ORT", **options)  # type: ignore[arg-type]
    with pytest.raises(ShapeOptionError, match="this command works with one") as caught:
        partition_model(path, devices="ORT", hints={"batch": (1, 8)})
    assert isinstance(caught.value.hint, Hint)


def test_every_combination_of_hints_and_sets_is_a_request() -> None:
    options = CompileOptions(
        devices="CPU", shape_sets=[{"x": (1, 2)}, {"x": (3, 4)}], hints={"n": (5, 6)}, dims={"k": 7}
    )
    found = [(dict(r.shapes), dict(r.dims), r.label) for r in shape_requests(options)]
    assert found[1] == ({"x": (1, 2)}, {"k": 7, "n": 6}, "x=1x2;n=6") and len(found) == 5
    for devices, expected in (("GPU", [""]), ("CPU", ["n=5", "any"]), ("CPU,ORT", ["n=5", "any"])):
        requests = shape_requests(CompileOptions(devices=devices, hints={"n": (5,)}))
        assert [r.label for r in requests] == expected
        assert requests[-1].is_optional is (devices == "CPU")


@pytest.mark.parametrize("text", ["batch", "=1", "batch=", "batch=1,", "batch=a", "batch=-1"])
def test_a_malformed_hint_is_an_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ShapeOptionError) as caught:
        parse_hints([text])
    assert caught.value.where == f"--hint {text}"


def test_options_are_parsed() -> None:
    assert parse_hints(["batch=1,8", "time=16"]) == {"batch": (1, 8), "time": (16,)}
    assert parse_shape_sets(["x=1,3;y=2", "x=4,3"]) == ({"x": (1, 3), "y": (2,)}, {"x": (4, 3)})
    for wrong in (["x"], [";"], ["x=1;x=2"]):
        with pytest.raises(HeteroccError):
            parse_shape_sets(wrong)
    with pytest.raises(ShapeOptionError, match="has hints twice"):
        parse_hints(["n=1", "n=2"])
