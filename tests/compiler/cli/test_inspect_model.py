"""`heterocc inspect` on ONNX models, good and bad."""

import contextlib
import json
import random
from pathlib import Path

import onnx
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from heterocc.artifacts.errors import InputError
from heterocc.compiler.cli.main import app
from heterocc.compiler.importer.model_summary import summarise
from tests.compiler.small import conv_net, save


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *(str(a) for a in arguments)])


def dynamic(path: Path) -> Path:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    save(path, nodes, {"x": ["batch", 3, "time"]}, {"y": ["batch", 3, "time"], "z": [None, 3, 4]})
    return path


def test_it_shows_inputs_outputs_operators_weights_and_opset(tmp_path: Path) -> None:
    lines = inspect(conv_net(tmp_path / "m.onnx")).stdout.splitlines()
    assert "opset     ai.onnx 17 (IR version 9)" in lines
    assert "input     x: float32[1, 4, 8, 8]" in lines and "output    y: float32[1, 5]" in lines
    assert "weights   4 tensors, 1.2 kB" in lines
    assert any(line.startswith("nodes     8: Conv 2, Add 1") for line in lines)
    assert "--shape" not in "".join(lines)


def test_dynamic_dimensions_keep_their_names_and_the_options_that_are_needed_are_shown(tmp_path: Path) -> None:
    path = dynamic(tmp_path / "m.onnx")
    shown = inspect(path).stdout
    assert "input     x: float32[batch, 3, time]" in shown and "output    z: float32[?, 3, 4]" in shown
    assert "\n  --dim batch=SIZE --dim time=SIZE\n" in shown and shown.endswith("  time is a dimension of x\n")
    data = json.loads(inspect(path, "--json").stdout)
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "dims": ["batch", 3, "time"]}]
    assert data["outputs"][1]["dims"] == [None, 3, 4] and data["dynamic"] == ["x"] and data["nodes"] == 2
    assert data["dimensions"] == {"batch": ["x"], "time": ["x"]}


def test_external_data_is_named_and_not_opened(tmp_path: Path) -> None:
    proto = onnx.load(conv_net(tmp_path / "inline.onnx"))
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    assert json.loads(inspect(tmp_path / "m.onnx", "--json").stdout)["weights"] == {
        "count": 4,
        "bytes": 1248,
        "external": ["w.bin"],
    }


def test_operators_in_bodies_and_functions_are_counted(tmp_path: Path) -> None:
    out = [helper.make_tensor_value_info("b", TensorProto.FLOAT, [3])]
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "body", [], out)
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        helper.make_node("Mine", ["x"], ["z"], domain="own"),
    ]
    function = helper.make_function("own", "Mine", ["a"], ["r"], [helper.make_node("Abs", ["a"], ["r"])], [])
    save(tmp_path / "m.onnx", nodes, {"x": [3], "c": []}, {"y": [3], "z": [3]})
    proto = onnx.load(tmp_path / "m.onnx")
    proto.functions.append(function)
    onnx.save(proto, tmp_path / "m.onnx")
    data = json.loads(inspect(tmp_path / "m.onnx", "--json").stdout)
    assert data["operators"] == {"Neg": 2, "Abs": 1, "If": 1, "own::Mine": 1} and data["functions"] == 1


def test_options_for_bundles_are_refused_on_a_model(tmp_path: Path) -> None:
    done = inspect(conv_net(tmp_path / "m.onnx"), "--kernels")
    assert done.exit_code == 2 and "--kernels applies to bundles" in done.stderr


def test_a_name_that_is_not_utf8_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(conv_net(path).read_bytes().replace(b"conv1", b"con\xff1").replace(b"Sigmoid", b"Sigm\xffid"))
    done = inspect(path, "--json")
    assert done.exit_code == 1 and json.loads(done.stdout)["error"]["code"] in ("HC102", "HC103")


def test_damaged_models_give_an_answer_or_a_typed_error(tmp_path: Path) -> None:
    rng, path = random.Random(0), tmp_path / "m.onnx"
    data = dynamic(path).read_bytes()
    answered = 0
    for _ in range(500):
        damaged = bytearray(data[: rng.randrange(1, len(data))] if rng.random() < 0.3 else data)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(InputError):
            summary = summarise(path)
            assert json.dumps(summary.to_json()) and list(summary.lines())
            answered += 1
    assert 0 < answered < 500
