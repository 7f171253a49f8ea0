"""Hints of errors: tested proposals in the caller's terms, and files of a wrong kind."""

import contextlib
import gzip
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner, Result

from heterocc.artifacts.errors import HeteroccError, Hint, InputError, ShapeOptionError, UnsupportedOpError
from heterocc.artifacts.files.filetype import file_kind
from heterocc.compiler import compile_model
from heterocc.compiler.cli.main import app
from heterocc.runtime import load
from heterocc.runtime.machine.compat import HostInfo, host
from tests.compiler.small import conv_net, save


def heterocc(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    compile_model(conv_net(folder / "m.onnx"), folder / "m.hcb", devices="CPU")
    return folder / "m.hcb"


def test_a_hint_has_a_form_for_python_and_one_for_the_command_line() -> None:
    hint = "start, " + Hint("python", "command") + ", end"
    error = HeteroccError("no", hint=hint)
    assert str(error).endswith("hint: start, python, end")
    assert error.command_text().endswith("hint: start, command, end")
    assert error.to_json()["hint"] == "start, command, end"
    assert HeteroccError("no", hint="same").command_text() == str(HeteroccError("no", hint="same"))


def test_a_device_that_was_asked_is_proposed_for_a_node_that_nobody_can_run(tmp_path: Path) -> None:
    (tmp_path / "no.toml").write_text('name = "BOX"\nbackend = "opencl"\nrefuses = ["Relu", "Det"]\n')
    relu = save(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]})
    det = save(tmp_path / "det.onnx", [helper.make_node("Det", ["x"], ["y"])], {"x": [2, 17, 17]}, {"y": [2]})
    box = ["--device-file", tmp_path / "no.toml", "-d", "BOX"]
    for model, device in ((relu, "CPU"), (det, "ORT")):
        done = heterocc("compile", model, *box, "-o", tmp_path / "m.hcb")
        assert f"hint: {device} can run it: add {device} to --devices (-d BOX,{device})" in done.stderr, done.output
        with pytest.raises(UnsupportedOpError) as caught:
            compile_model(model, tmp_path / "m.hcb", devices="BOX", device_files=[tmp_path / "no.toml"])
        assert f"add {device} to `devices` ('BOX,{device}')" in str(caught.value.hint)
    assert heterocc("compile", relu, *box[:-1], "BOX,CPU", "-o", tmp_path / "m.hcb").exit_code == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("x=1,3,0,64", "dimension 2 of 'x' is 0"),
        ("x=1,3,-5,64", "dimension 2 of 'x' cannot be '-5'"),
        ("x=1,3,a,64", "dimension 2 of 'x' cannot be 'a'"),
        ("x=1,3,1.5,64", "dimension 2 of 'x' cannot be '1.5'"),
        ("x=1,3,99999999999999999999999,64", "dimension 2 of 'x' cannot be '9999"),
        ("x=1,3,999999999999999999,64", "dimension 2 of 'x' is 999999999999999999"),
    ],
)
def test_a_shape_that_cannot_be_is_named_with_its_dimension(shape: str, message: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
        helper.make_node("GlobalAveragePool", ["a"], ["y"], name="pool"),
    ]
    model = save(
        tmp_path / "m.onnx",
        nodes,
        {"x": [1, 3, "h", "w"]},
        {"y": [1, 2, 1, 1]},
        {"w": np.ones((2, 3, 3, 3), np.float32)},
    )
    done = heterocc("compile", model, "--shape", shape, "-o", tmp_path / "m.hcb")
    assert done.exit_code == 2 and "error[HC106]" in done.stderr and message in done.stderr, done.output


def test_shapes_from_python_are_named_in_the_same_way(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 3]}, {"y": ["n", 3]})
    for shape, message in (((-1, 3), "dimension 0 of 'x' is negative"), ((2.0, 3), "dimension 0 of 'x' is 2.0")):
        with pytest.raises(ShapeOptionError, match=message):
            compile_model(model, tmp_path / "m.hcb", shapes={"x": shape})
    with pytest.raises(InputError) as caught:
        compile_model(model, tmp_path / "m.hcb", devices="VULKAN")
    assert isinstance(caught.value.hint, Hint)
    assert "dims={'n': 1}" in str(caught.value.hint) and "--dim n=1" in caught.value.hint.command


def test_an_empty_shape_is_accepted_if_the_model_can_compute_with_it(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 3]}, {"y": ["n", 3]})
    assert heterocc("compile", model, "--shape", "x=0,3", "-o", tmp_path / "m.hcb").exit_code == 0


def test_files_given_as_a_model_are_called_what_they_are(bundle: Path, tmp_path: Path) -> None:
    onnx = bundle.with_suffix(".onnx").read_bytes()
    with zipfile.ZipFile(tmp_path / "net.pth", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("model.onnx", onnx)
    np.savez(tmp_path / "in.npz", x=np.ones(3))
    np.save(tmp_path / "x.npy", np.ones(3))
    for name, data in {
        "old.pt": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        "net.tflite": b"\x1c\0\0\0TFL3" + bytes(40),
        "lfs.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        "page.onnx": b"<!DOCTYPE html>\n<html></html>",
        "place.toml": b'[nodes]\n"a" = "CPU"\n',
        "m.onnx.gz": gzip.compress(onnx),
        "empty.onnx": b"",
        "graph.pb": b"\n\x99\xff\xff",
    }.items():
        (tmp_path / name).write_bytes(data)
    shutil.copy(bundle, tmp_path / "m.hcb")
    for name, message, hint in (
        ("m.hcb", "a heterocc bundle", f"heterocc run {tmp_path / 'm.hcb'}"),
        ("net.pth", "a PyTorch checkpoint", "torch.onnx.export"),
        ("old.pt", "PyTorch", "torch.onnx.export"),
        ("net.tflite", "a TensorFlow Lite model", "export"),
        ("lfs.onnx", "a Git LFS pointer", "git lfs pull"),
        ("page.onnx", "an HTML page", "download"),
        ("place.toml", "a text file", "--affinity"),
        ("in.npz", "numpy arrays", "--inputs"),
        ("x.npy", "a numpy array", "--inputs"),
        ("m.onnx.gz", "compressed with gzip", "unpack"),
        ("model.zip", "a model inside", "unpack"),
        ("empty.onnx", "empty", "again"),
        ("graph.pb", "not an ONNX model", "tf2onnx"),
        (".", "a directory", ".onnx"),
    ):
        done = heterocc("compile", tmp_path / name, "-o", tmp_path / "out.hcb")
        assert done.exit_code == 1 and message in done.stderr and hint in done.stderr, (name, done.stderr)
        assert "Python" not in done.stderr or name == "old.pt"
    with contextlib.chdir(tmp_path):  # where the default output would be the bundle itself
        done = heterocc("compile", "m.hcb")
    assert "a heterocc bundle" in done.stderr and "it is compiled already" in done.stderr


def test_files_given_as_a_bundle_are_called_what_they_are(bundle: Path, tmp_path: Path) -> None:
    model = bundle.with_suffix(".onnx")
    done = heterocc("run", model)
    assert "is an ONNX model, not a bundle" in done.stderr
    assert f"compile it first: heterocc compile {model} -o {bundle}" in done.stderr
    with pytest.raises(HeteroccError) as caught:
        load(model)
    assert "compile it first: compile_model(" in str(caught.value.hint)
    np.savez(tmp_path / "in.npz", x=np.ones(3))
    assert "numpy arrays" in heterocc("run", tmp_path / "in.npz").stderr


def test_files_given_as_affinity_device_file_or_inputs_are_called_what_they_are(bundle: Path, tmp_path: Path) -> None:
    model = bundle.with_suffix(".onnx")
    for arguments in (
        ["partition", model, "-a", bundle],
        ["partition", model, "--device-file", bundle],
        ["bench", bundle, "--against", bundle, "-n", "1"],
    ):
        done = heterocc(*arguments)
        assert done.exit_code == 1 and "a heterocc bundle" in done.stderr, done.output
    shutil.copy(model, tmp_path / "in.npz")
    assert "it is an ONNX model" in heterocc("run", bundle, "-i", tmp_path / "in.npz").stderr


def test_every_onnx_model_of_the_suite_is_known_as_one(tmp_path: Path) -> None:
    assert file_kind(conv_net(tmp_path / "m.onnx").read_bytes()) == "an ONNX model"


def test_a_hint_to_another_variant_is_given_only_if_that_can_run(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = HostInfo(host().arch, host().cpu_features, None, host().onnxruntime)
    monkeypatch.setattr("heterocc.runtime.select.select.host", lambda: bare)
    with pytest.raises(HeteroccError) as caught:
        load(bundle, devices="CPU")
    assert "without" not in str(caught.value.hint) and "--force-reinstall" in str(caught.value.hint)


@pytest.mark.parametrize("form", ["npz", "npy", "fed"])
def test_big_endian_inputs_are_converted(form: str, bundle: Path, tmp_path: Path) -> None:
    given = np.arange(256, dtype=">f4").reshape(1, 4, 8, 8)
    with load(bundle) as session:
        expected = session.run({"x": given.astype(np.float32)})["y"]
        if form == "fed":
            out = np.zeros(expected.shape, ">f4")
            assert np.array_equal(session.run({"x": given})["y"], expected)
            session.run({"x": given}, out={"y": out})
            assert np.array_equal(out, expected)
            bound = session.bind()
            bound.inputs["x"][...] = given
            assert np.array_equal(bound.run()["y"], expected)
            return
    path = tmp_path / f"x.{form}"
    if form == "npz":
        np.savez(path, x=given)
        done = heterocc("compile", bundle.with_suffix(".onnx"), "--inputs", path, "-o", tmp_path / "again.hcb")
        assert done.exit_code == 0, done.output
    else:
        np.save(path, given)
    done = heterocc("run", bundle, "-i", f"x={path}" if form == "npy" else path, "-o", tmp_path / "out.npz")
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "out.npz") as archive:
        assert np.array_equal(archive["y"], expected)
