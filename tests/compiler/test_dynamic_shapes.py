"""Models with dynamic dimensions as they come: partitions in ONNX Runtime take any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from typer.testing import CliRunner

from heterocc.artifacts.errors import DynamicShapeError, FeedError, HeteroccError, ShapeOptionError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import Reporter, compile_model, verify_bundle
from heterocc.compiler.cli.main import app
from heterocc.compiler.lower.ort import lowering
from heterocc.compiler.support.query import query_model
from heterocc.compiler.support.trial import Support
from heterocc.runtime import load
from tests.compiler.onnx_build import I64, model, node, noise
from tests.compiler.onnx_build import save as save_model
from tests.compiler.onnx_build import value as info
from tests.compiler.small import save
from tests.symbolic_models import convolutions, transformer


def reference(path: Path, feed: dict[str, np.ndarray]) -> list[Any]:
    return list(onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed))


def image_net(path: Path) -> Path:
    """A convolution, a residual sum, pooling and a product over images of any size."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Add", ["a", "b"], ["c"], name="sum"),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], name="pool"),
        helper.make_node("Flatten", ["d"], ["e"], name="flat"),
        helper.make_node("MatMul", ["e", "m"], ["y"], name="fc"),
    ]
    constants = {"w": noise(4, 3, 3, 3), "m": noise(4, 5)}
    return save(path, nodes, {"x": ["batch", 3, "h", "w"]}, {"y": ["batch", 5]}, constants)


@pytest.fixture(scope="module")
def image_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dynamic") / "m.onnx"
    done = CliRunner().invoke(app, ["compile", str(image_net(path)), "-d", "ORT", "-o", str(path.with_suffix(".hcb"))])
    assert done.exit_code == 0, done.output
    return path.with_suffix(".hcb")


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (4, 3, 17, 40), (2, 3, 1, 1)], ids=str)
def test_one_bundle_runs_at_any_size_as_onnx_runtime_does(image_bundle: Path, shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    with load(image_bundle) as session:
        assert str(session.inputs[0]) == "x: float32 [batch, 3, h, w]"
        found = session.run({"x": x})["y"]
    np.testing.assert_allclose(found, reference(image_bundle.with_suffix(".onnx"), {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_the_bundle_has_golden_vectors_of_a_plausible_size_and_is_verified(image_bundle: Path) -> None:
    with open_bundle(image_bundle) as opened:
        assert opened.manifest.golden is not None
        assert opened.array(opened.manifest.golden.inputs["x"]).shape == (1, 3, 224, 224)
        assert opened.manifest.variants[0].partitions[0].checked
    assert verify_bundle(image_bundle, None).ok
    assert verify_bundle(image_bundle, image_bundle.with_suffix(".onnx")).ok


def test_run_and_bench_take_sizes(image_bundle: Path) -> None:
    def shape(*options: str) -> list[int]:
        done = CliRunner().invoke(app, ["run", str(image_bundle), "--json", *options])
        assert done.exit_code == 0, done.output
        return list(json.loads(done.stdout)["outputs"]["y"]["shape"])

    assert shape() == [1, 5] and shape("--dim", "batch=3", "--dim", "h=8") == [3, 5]
    assert shape("--shape", "x=2,3,8,9") == [2, 5]
    done = CliRunner().invoke(app, ["bench", str(image_bundle), "--shape", "x=2,3,8,8", "-n", "2"])
    assert done.exit_code == 0, done.output


def test_dimensions_of_one_name_must_agree_in_a_feed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(path, [helper.make_node("Add", ["a", "b"], ["y"])], {"a": ["n", 2], "b": ["n", 2]}, {"y": ["n", 2]})
    compile_model(path, tmp_path / "m.hcb", devices="ORT")
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"a": noise(3, 2), "b": noise(3, 2)})["y"].shape == (3, 2)
        with pytest.raises(FeedError, match="dimension 'n' is 3 in 'a' and 1 in 'b'"):
            session.run({"a": noise(3, 2), "b": noise(1, 2)})


def test_dynamic_nodes_with_generated_code_run_on_the_cpu_beside_onnx_runtime(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Transpose", ["x"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    save(path, nodes, {"x": ["n", "m"]}, {"y": ["n", "n"]})
    query = query_model(path)
    assert set(query.affinity.values()) == {"CPU"} and query.unsupported("CPU") == ()


@pytest.mark.parametrize("when", ["queried", "lowered"])
def test_a_dynamic_model_that_onnx_runtime_refuses_runs_on_the_cpu_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def refuse(*_: object, optimise: bool = False) -> str | None:
        return "no kernel is found" if optimise == (when == "lowered") else None

    monkeypatch.setattr(lowering, "_refusal", refuse)
    monkeypatch.setenv("HETEROCC_CACHE", "off")
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    save(path, nodes, {"x": ["n", "m"]}, {"y": ["n", "m"]}, {"axis": np.array(0, np.int64)})
    report = compile_model(path, tmp_path / "m.hcb")
    assert set(report.plan.device_of.values()) == {"CPU"}
    assert report.moved == ()
    with load(tmp_path / "m.hcb") as session:
        x = noise(3, 5)
        np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(np.cumsum(x, 0), 0), rtol=1e-5)


def test_totals_along_a_fixed_axis_of_a_dynamic_map_run_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [
        helper.make_node("CumSum", ["x", "last"], ["s"], exclusive=1),
        helper.make_node("CumSum", ["t", "first"], ["u"], reverse=1),
    ]
    axes = {"last": np.array(1), "first": np.array(0)}
    save(path, nodes, {"x": ["n", 4], "t": [4, "n"]}, {"s": ["n", 4], "u": [4, "n"]}, axes)
    compile_model(path, tmp_path / "m.hcb", devices="CPU")
    feed = {"x": noise(3, 4), "t": noise(4, 3)}
    with load(tmp_path / "m.hcb") as session:
        for found, wanted in zip(session.run(feed).values(), reference(path, feed), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_nodes_of_sizes_that_the_cpu_does_not_take_run_in_onnx_runtime_and_a_note_names_the_dimension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Support, "_takes_sizes", lambda *_: False)
    nodes = [
        helper.make_node("Tanh", ["c"], ["t"], name="tanh"),
        helper.make_node("MatMul", ["t", "w"], ["s"], name="fixed"),
        helper.make_node("Add", ["x", "s"], ["a"], name="sum"),
        helper.make_node("CumSum", ["a", "axis"], ["y"], name="total"),
    ]
    path = tmp_path / "m.onnx"
    constants = {"w": noise(4, 8), "axis": np.array(0, np.int64)}
    save(path, nodes, {"c": [1, 4], "x": ["n", 8]}, {"y": ["n", 8], "s": [1, 8]}, constants)
    reporter = Reporter()
    report = compile_model(path, tmp_path / "m.hcb", reporter=reporter)
    placed = report.plan.device_of
    assert placed["sum"] == placed["total"] == "ORT"
    assert any("dimension n stays dynamic: 2 nodes of variant main run in ONNX Runtime" in n for n in reporter.notes)
    with load(tmp_path / "m.hcb") as session:
        for size in (1, 3, 100):
            feed = {"c": noise(1, 4), "x": noise(size, 8, seed=size)}
            found = session.run(feed)
            for got, expected in zip((found["y"], found["s"]), reference(path, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_without_cpu_and_onnx_runtime_in_the_list_dynamic_dimensions_are_an_error(tmp_path: Path) -> None:
    path = image_net(tmp_path / "m.onnx")
    for options in ({"devices": "VULKAN"}, {"devices": "CPU,ORT", "variants": ("VULKAN",)}):
        with pytest.raises(DynamicShapeError) as caught:
            compile_model(path, tmp_path / "m.hcb", **options)  # type: ignore[arg-type]
        assert "--dim batch=1 --dim h=224 --dim w=224; or add ORT to --devices" in caught.value.command_text()


def test_a_size_without_hint_runs_in_dynamic_code_beside_the_code_for_hints(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 8]}, {"w": noise(4, 8)})
    report = compile_model(path, tmp_path / "m.hcb", hints={"n": (1, 2)}, check=False)
    assert report.variants == ("main", "main@n=2", "main@any")
    with load(tmp_path / "m.hcb") as session:
        assert str(session.inputs[0]) == "x: float32 [n (1 or more), 4]"
        used = []
        for size in (1, 2, 5):
            x = noise(size, 4)
            np.testing.assert_allclose(session.run({"x": x})["y"], reference(path, {"x": x})[0], rtol=1e-4, atol=1e-5)
            used.append((session.variant.name, session.variant.devices[0].name))
        assert used == [("main", "CPU"), ("main@n=2", "CPU"), ("main@any", "CPU")]
    assert verify_bundle(tmp_path / "m.hcb", None).ok


def test_inputs_without_a_name_or_a_rank_are_taken_too(tmp_path: Path) -> None:
    nodes = [node("Add", "x x", "y"), node("Shape", "z", "s")]
    proto = model(nodes, [info("x", [None, 2]), info("z", None)], [info("y"), info("s", None, I64)])
    compile_model(save_model(tmp_path, proto), tmp_path / "m.hcb", devices="ORT")
    with load(tmp_path / "m.hcb") as session:
        assert [str(i) for i in session.inputs] == ["x: float32 [x_0, 2]", "z: float32 any shape"]
        for size in (1, 4):
            found = session.run({"x": noise(size, 2), "z": noise(*[2] * size)})
            assert found["y"].shape == (size, 2) and list(found["s"]) == [2] * size


def test_a_model_of_integers_and_shape_arithmetic_is_taken_as_it_comes(tmp_path: Path) -> None:
    """An embedding with positions computed from the shape of its input."""
    nodes = [
        node("Shape", "ids", "s"),
        node("Gather", "s one", "t", axis=0),
        node("Range", "zero t step", "r"),
        node("Gather", "table ids", "e"),
        node("Gather", "places r", "p"),
        node("Add", "e p", "y"),
    ]
    constants = {
        "one": np.array(1, np.int64),
        "zero": np.array(0, np.int64),
        "step": np.array(1, np.int64),
        "table": noise(11, 6),
        "places": noise(64, 6),
    }
    proto = model(nodes, [info("ids", ["batch", "time"], I64)], [info("y")], constants)
    path = save_model(tmp_path, proto)
    compile_model(path, tmp_path / "m.hcb")
    with load(tmp_path / "m.hcb") as session:
        for batch, time in ((1, 7), (3, 64), (2, 1)):
            ids = np.arange(batch * time, dtype=np.int64).reshape(batch, time) % 11
            np.testing.assert_array_equal(session.run({"ids": ids})["y"], reference(path, {"ids": ids})[0])


def test_bounds_are_checked_before_a_run_and_limit_the_seeded_inputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(path, [helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]})
    done = CliRunner().invoke(
        app, ["compile", str(path), "-d", "ORT", "--dim", "n=2..6", "-o", str(tmp_path / "m.hcb")]
    )
    assert done.exit_code == 0, done.output
    assert "(n 2 to 6)" in CliRunner().invoke(app, ["inspect", str(tmp_path / "m.hcb")]).output
    with load(tmp_path / "m.hcb") as session:
        assert str(session.inputs[0]) == "x: float32 [n (2 to 6), 4]"
        assert session.run({"x": noise(6, 4)})["y"].shape == (6, 4)
        for size in (1, 7):
            with pytest.raises(FeedError, match=f"dimension 'n' of input 'x' must be 2 to 6, got {size}"):
                session.run({"x": noise(size, 4)})
    assert verify_bundle(tmp_path / "m.hcb", None).ok


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": "VULKAN", "dims": {"n": (1, 4)}}, "need a device that takes dynamic dimensions"),
        ({"dims": {"n": (4, 1)}}, "cannot be"),
        ({"dims": {"n": (1, 2, 3)}}, "cannot be"),
        ({"dims": {"m": (1, 4)}}, "named 'm'"),
        ({"devices": "CPU", "dims": {"n": (0, 0)}}, "bounded to 0 to 0, and code for the CPU takes 1 or more"),
        ({"dims": {"n": (1, 4)}, "hints": {"n": (2, 8)}}, "the hint 8 for dimension 'n' is not in its bounds, 1 to 4"),
    ],
)
def test_bounds_that_cannot_hold_are_errors(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    path = tmp_path / "m.onnx"
    save(path, [helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]})
    with pytest.raises(ShapeOptionError, match=words):
        compile_model(path, tmp_path / "m.hcb", **{"devices": "ORT", **options})


@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT"])
def test_a_batch_of_images_runs_on_the_cpu_at_any_size(tmp_path: Path, devices: str) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(convolutions(), path)
    report = compile_model(path, tmp_path / "m.hcb", devices=devices)
    assert set(report.plan.device_of.values()) == {"CPU"} and len(report.plan.partitions) == 1
    with load(tmp_path / "m.hcb") as session:
        for size in (1, 3, 8):
            feed = {"x": noise(size, 3, 16, 16)}
            np.testing.assert_allclose(session.run(feed)["y"], reference(path, feed)[0], rtol=1e-4, atol=1e-5)
        width = session.run({"x": noise(1, 3, 16, 16)})["y"].shape[1]
        assert session.run({"x": noise(0, 3, 16, 16)})["y"].shape == (0, width)


def test_bounds_are_those_of_the_option_that_the_code_allows(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(path, [helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]})
    for devices, least in (("CPU", 1), ("ORT", 0)):
        compile_model(path, tmp_path / "m.hcb", devices=devices, dims={"n": (0, 6)}, check=False)
        with load(tmp_path / "m.hcb") as session:
            assert str(session.inputs[0]) == f"x: float32 [n ({least} to 6), 4]"


@pytest.mark.slow
def test_a_transformer_runs_on_the_cpu_up_to_the_length_of_its_table(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(transformer(size=8, longest=12), path)
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU")
    assert report.plan.partitions[0].device == "CPU"
    with load(tmp_path / "m.hcb") as session:
        for size in ((1, 1), (2, 5), (3, 12)):
            feed = {"ids": np.full(size, 7, np.int64), "mask": np.ones(size, np.int64)}
            for got, wanted in zip(session.run(feed).values(), reference(path, feed), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        with pytest.raises(FeedError, match="dimension 'seq' of input 'ids' must be 1 to 12, got 13"):
            session.run({"ids": np.zeros((1, 13), np.int64), "mask": np.ones((1, 13), np.int64)})


def test_scatter_nd_checks_sizes_of_updates_that_only_a_run_shows(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[n, 3] x, float[k, 3] given, int64[p, 1] rows) => (float[n, 3] y)
    {
      y = ScatterND(x, rows, given)
    }
    """
    path = tmp_path / "m.hcb"
    compile_model(onnx.parser.parse_model(text), path, devices="CPU")
    rng = np.random.default_rng(3)
    x, given = rng.standard_normal((5, 3), np.float32), rng.standard_normal((2, 3), np.float32)
    rows = np.array([[4], [1]])
    with load(path) as session:
        found = session.run({"x": x, "given": given, "rows": rows})["y"]
        wanted = x.copy()
        wanted[[4, 1]] = given
        np.testing.assert_array_equal(found, wanted)
        with pytest.raises(HeteroccError, match="dimension"):
            session.run({"x": x, "given": given[:1], "rows": rows})
