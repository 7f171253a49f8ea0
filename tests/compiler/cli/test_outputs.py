"""Output files of commands: never over an input, never in a mistyped folder, each under its own name."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner, Result

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files.atomic import AtomicFile
from heterocc.artifacts.files.reading import reading
from heterocc.compiler import compile_model, partition_model
from heterocc.compiler.cli.main import app
from heterocc.compiler.placement.affinity_file import write_affinity_file
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.files.inputs import read_files
from heterocc.runtime.files.npz import read_npz
from heterocc.runtime.files.outputs import NAMES, file_names, write_outputs
from tests.compiler.small import conv_net, save

ODD_NAMES = [
    *("file", "allow_pickle", "a/b", "a_b", "..", ".", "", "../up", "/root", "A_B", "café", "模型", "a.npy", "a", "-"),
    *("new\nline", "\x1b[2J", "nul\0", "names", "names.json", "long" * 5_000, "long" * 5_000 + "!", "longer" * 20_000),
]


def heterocc(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def relu(path: Path, outputs: tuple[str, ...] = ("y",)) -> Path:
    nodes = [helper.make_node("Relu", ["x"], [name], name=f"n{i}") for i, name in enumerate(outputs)]
    return save(path, nodes, {"x": [4]}, {name: [4] for name in outputs})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    done = heterocc("compile", relu(folder / "m.onnx"), "-d", "CPU", "-o", folder / "m.hcb", "-q")
    assert done.exit_code == 0, done.output
    return folder / "m.hcb"


def same(path: Path) -> Path:
    return path


def hard_link(path: Path) -> Path:
    link = path.with_name("hard" + path.suffix)
    os.link(path, link)
    return link


def soft_link(path: Path) -> Path:
    link = path.with_name("soft" + path.suffix)
    link.symlink_to(path)
    return link


def other_spelling(path: Path) -> Path:
    (path.parent / "sub").mkdir(exist_ok=True)
    return path.parent / "sub" / ".." / path.name


@pytest.mark.parametrize("alias", [same, hard_link, soft_link, other_spelling])
@pytest.mark.parametrize("what", ["m.onnx", "place.toml", "box.toml", "in.npz"])
def test_no_output_of_a_compile_may_be_an_input(what: str, alias: Callable[[Path], Path], tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    (tmp_path / "place.toml").write_text('[ops]\n"Conv" = "CPU"\n')
    (tmp_path / "box.toml").write_text('name = "BOX"\nbackend = "cpu"\n')
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4, 8, 8), np.float32))
    before = (tmp_path / what).read_bytes()
    target = alias(tmp_path / what)
    files = ["-a", tmp_path / "place.toml", "--device-file", tmp_path / "box.toml"]
    commands: list[list[object]] = [["compile", model, *files, "--inputs", tmp_path / "in.npz", "-o", target]]
    if what != "in.npz":
        commands.append(["partition", model, *files, "--write-affinity", target])
    for command in commands:
        done = heterocc(*command)
        assert done.exit_code == 1 and "error[HC111]" in done.stderr and "overwrite" in done.stderr
    assert (tmp_path / what).read_bytes() == before


def test_no_output_may_be_the_models_external_data(tmp_path: Path) -> None:
    model = onnx.load(conv_net(tmp_path / "plain.onnx"))
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    before = (tmp_path / "m.data").read_bytes()
    for option in ("-o", "--write-affinity"):
        command = "compile" if option == "-o" else "partition"
        done = heterocc(command, tmp_path / "m.onnx", option, tmp_path / "m.data")
        assert done.exit_code == 1 and "the model's external data" in done.stderr
    assert (tmp_path / "m.data").read_bytes() == before


def test_no_dump_or_graph_may_be_the_model(tmp_path: Path) -> None:
    for option, name in (("--dump-dir", "00-greedy.plan"), ("--dot", "hetero_affinity_hetero_affinity_m.dot")):
        path = relu(tmp_path / name)
        if option == "--dot":
            path = path.rename(tmp_path / "hetero_affinity_m.dot")
            (tmp_path / "m.onnx").symlink_to(path)
            path = tmp_path / "m.onnx"
        before = path.read_bytes()
        done = heterocc("partition", path, "-d", "CPU", option, tmp_path)
        assert done.exit_code == 1 and "is the model" in done.stderr, done.output
        assert path.read_bytes() == before


def test_python_refuses_to_overwrite_an_input_too(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx")
    before = model.read_bytes()
    with pytest.raises(OutputFileError, match="is the model"):
        compile_model(model, str(model))
    with pytest.raises(OutputFileError, match="is the model"):
        partition_model(model, write_affinity=str(model))
    plan = partition_model(model, devices="CPU").plan
    with reading({model: "the model"}), pytest.raises(OutputFileError, match="is the model"):
        write_affinity_file(plan, model)
    assert model.read_bytes() == before


def test_an_output_that_becomes_an_input_while_it_is_written_is_not_put_in_place(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx")
    before = model.read_bytes()
    with reading({model: "the model"}):
        file = AtomicFile(tmp_path / "m.hcb")
        file.write(b"bundle")
        os.link(model, tmp_path / "m.hcb")
        with pytest.raises(OutputFileError, match="is the model"):
            file.commit()
    assert model.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["m.hcb", "m.onnx"]


def test_the_default_output_is_never_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = relu(tmp_path / "m.onnx").rename(tmp_path / "m.hcb")
    before = model.read_bytes()
    done = heterocc("compile", "m.hcb", "-d", "CPU")
    assert done.exit_code == 0, done.stderr
    assert model.read_bytes() == before and (tmp_path / "m.hcb.hcb").is_file()


def test_a_run_overwrites_neither_the_bundle_nor_its_inputs(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "bundle.npz"
    own.write_bytes(bundle.read_bytes())
    np.savez(tmp_path / "in.npz", x=np.ones(4, np.float32))
    np.save(tmp_path / "y.npy", np.ones(4, np.float32))
    for arguments in (
        [own, "-o", own],
        [bundle, "-i", tmp_path / "in.npz", "-o", tmp_path / "in.npz"],
        [bundle, "-i", f"x={tmp_path / 'y.npy'}", "-o", tmp_path],
    ):
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        done = heterocc("run", *arguments)
        assert done.exit_code == 1 and "error[HC111]" in done.stderr, done.output
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_is_missing_above_an_output_is_an_error_and_not_made(bundle: Path, tmp_path: Path) -> None:
    """A mistyped one was created, and the output was where nobody looks."""
    model = relu(tmp_path / "m.onnx")
    before = set(tmp_path.iterdir())
    for arguments in (
        ("compile", model, "-d", "CPU", "-o", tmp_path / "a" / "b" / "m.hcb"),
        ("partition", model, "--write-affinity", tmp_path / "c" / "p.toml"),
        ("run", bundle, "-o", tmp_path / "e" / "out.npz"),
    ):
        done = heterocc(*arguments)
        assert done.exit_code == 1 and "there is no folder" in done.stderr, done.stderr
    assert set(tmp_path.iterdir()) == before


def test_a_folder_that_is_itself_the_output_is_made(bundle: Path, tmp_path: Path) -> None:
    assert heterocc("run", bundle, "-o", tmp_path / "g" / "h").exit_code == 0
    assert (tmp_path / "g" / "h" / "y.npy").is_file()


def test_a_failed_compile_makes_no_directory(tmp_path: Path) -> None:
    assert heterocc("compile", tmp_path / "absent.onnx", "-o", tmp_path / "new" / "m.hcb").exit_code == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "m.onnx", "-o", "-"],
        ["compile", "m.onnx", "--dump-dir", "-"],
        ["partition", "m.onnx", "--write-affinity", "-"],
        ["partition", "m.onnx", "--dot", "-"],
        ["run", "m.hcb", "-o", "-"],
    ],
)
def test_a_dash_is_no_output(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = heterocc(*arguments)
    assert done.exit_code == 1 and "standard output" in done.stderr and "hint: name a file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_outputs_keep_their_names_in_an_npz_and_are_read_back(tmp_path: Path) -> None:
    results = {name: np.full(2, i, np.float32) for i, name in enumerate(ODD_NAMES)}
    write_outputs(tmp_path / "out.npz", results)
    back = read_npz(tmp_path / "out.npz")
    assert list(back) == ODD_NAMES
    assert all(np.array_equal(back[name], value) for name, value in results.items())
    with np.load(tmp_path / "out.npz") as archive:
        assert archive["file"][0] == 0 and archive["allow_pickle"][0] == 1 and archive["a/b"][0] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]


def test_outputs_in_a_directory_have_files_of_their_own_and_a_list_of_changed_names(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    results = {name: np.full(2, i, np.float32) for i, name in enumerate(ODD_NAMES)}
    write_outputs(folder, results)
    files = [p.name for p in folder.iterdir() if p.name != NAMES]
    assert len({name.casefold() for name in files}) == len(ODD_NAMES)
    changed = json.loads((folder / NAMES).read_text())
    names = {file: changed.get(file, file.removesuffix(".npy")) for file in files}
    assert sorted(names.values()) == sorted(ODD_NAMES)
    assert all(np.array_equal(np.load(folder / file), results[name]) for file, name in names.items())
    assert (folder / "a_b.npy").is_file() and names["a_b.npy"] == "a_b" and names["café.npy"] == "café"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_list_of_names_stays_true_when_the_directory_is_written_again(tmp_path: Path) -> None:
    write_outputs(tmp_path, {"a/b": np.zeros(1)})
    write_outputs(tmp_path, {"a_b": np.ones(1), "c:d": np.ones(1)})
    assert json.loads((tmp_path / NAMES).read_text()) == {"c_d.npy": "c:d"}


def test_file_names_differ_whatever_the_order() -> None:
    assert file_names(["a/b", "a_b", "A_B"]) == {"a_b-3.npy": "a/b", "a_b.npy": "a_b", "A_B-2.npy": "A_B"}


@pytest.mark.parametrize("place", ["out.npz", "out"])
def test_a_run_of_a_model_with_odd_names_is_given_back_as_inputs(place: str, tmp_path: Path) -> None:
    names = ("file", "allow_pickle", "a/b", "a_b", "..")
    first = relu(tmp_path / "first.onnx", names)
    nodes = [helper.make_node("Neg", [n], [f"r{i}"], name=f"n{i}") for i, n in enumerate(names)]
    second = save(tmp_path / "second.onnx", nodes, {n: [4] for n in names}, {f"r{i}": [4] for i in range(5)})
    for model in (first, second):
        done = heterocc("compile", model, "-d", "CPU", "-o", model.with_suffix(".hcb"), "-q")
        assert done.exit_code == 0, done.output
    done = heterocc("run", tmp_path / "first.hcb", "-o", tmp_path / place)
    assert done.exit_code == 0, done.output
    done = heterocc("run", tmp_path / "second.hcb", "-i", tmp_path / place, "--json")
    assert done.exit_code == 0, done.output


def test_arrays_of_sequences_have_numbers_in_files(tmp_path: Path) -> None:
    values = {"s": [np.ones(2, np.float32), np.zeros((0, 3), np.float32)], "e": [], "o": None, "x": np.ones(1)}
    kinds = {"s": "seq(tensor(float))", "e": "seq(tensor(float))", "o": "optional(tensor(float))", "x": "float64"}
    for target in (tmp_path / "out.npz", tmp_path / "folder"):
        write_outputs(target, values)
        found = read_files({name: TensorInfo(name, kind, None) for name, kind in kinds.items()}, [str(target)])
        assert found.keys() == values.keys() and found["o"] is None and found["e"] == []
        for got, wanted in zip(found["s"], values["s"], strict=True):
            np.testing.assert_array_equal(got, wanted)
    write_outputs(tmp_path / "less.npz", {"x": np.ones(1)})
    assert "s" not in read_files({n: TensorInfo(n, kinds[n], None) for n in "sx"}, [f"{tmp_path}/less.npz"])
