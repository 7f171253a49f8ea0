from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from heterocc.artifacts.errors import FeedError, FileMissingError, OutputFileError, ShapeOptionError, UsageError
from heterocc.artifacts.manifest import TensorSpec
from heterocc.compiler.cli.options import compile_options
from heterocc.runtime.files.inputs import read_files
from heterocc.runtime.files.outputs import require_place, write_outputs
from heterocc.runtime.files.shape_options import parse_shapes
from heterocc.runtime.select.request import parse_request

SPECS = {"x": TensorSpec(name="x", dtype="float32", shape=(2, 2)), "n": TensorSpec(name="n", dtype="int64", shape=())}


@pytest.mark.parametrize(
    ("text", "name", "shape"),
    [
        ("x=1,3,224,224", "x", (1, 3, 224, 224)),
        ("x=1x3x8x8", "x", (1, 3, 8, 8)),
        ("serving:0=[4]", "serving:0", (4,)),
        ("a=b=2", "a=b", (2,)),
        ("scalar=", "scalar", ()),
    ],
)
def test_a_shape_option_is_read(text: str, name: str, shape: tuple[int, ...]) -> None:
    assert parse_shapes([text]) == {name: shape}


@pytest.mark.parametrize("text", ["x", "=1,2", "x=1,a", "x=-1,3", "x=1.5"])
def test_a_malformed_shape_option_is_an_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ShapeOptionError) as caught:
        parse_shapes([text])
    assert caught.value.where == f"--shape {text}" and caught.value.exit_code == 2


def test_a_shape_given_twice_is_an_error() -> None:
    with pytest.raises(ShapeOptionError, match="given twice"):
        parse_shapes(["x=1", "x=2"])


@pytest.mark.parametrize("text", ["GPU, CPU,ORT", "", "auto:GPU,CPU", "MULTI:GPU,CPU", "HETERO:GPU,CPU", "AUTO:-CPU"])
def test_the_text_of_devices_is_an_option_as_it_is_and_means_the_request(text: str) -> None:
    options = compile_options(SimpleNamespace(devices=text, dim=["n=4"], no_check=True, json=True))
    assert parse_request(tuple(options.devices)) == parse_request(text)
    assert (options.dims, options.check, options.recheck) == ({"n": 4}, False, False)


def test_inputs_are_read_from_npz_npy_and_raw_bytes(tmp_path: Path) -> None:
    x, n = np.arange(4, dtype=np.float32).reshape(2, 2), np.array(3, np.int64)
    np.savez(tmp_path / "in.npz", x=x)
    np.save(tmp_path / "n.npy", n)
    (tmp_path / "x.bin").write_bytes(x.tobytes())
    feed = read_files(SPECS, [str(tmp_path / "in.npz"), f"n={tmp_path / 'n.npy'}"])
    assert np.array_equal(feed["x"], x) and feed["n"] == 3
    assert np.array_equal(read_files(SPECS, [f"x={tmp_path / 'x.bin'}"])["x"], x)
    only = {"x": SPECS["x"]}
    assert np.array_equal(read_files(only, [str(tmp_path / "x.bin")])["x"], x)


def test_a_raw_file_of_the_wrong_size_names_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"123")
    with pytest.raises(FeedError, match=r"3 bytes for input 'x', which is float32\[2, 2\] \(16 bytes\)"):
        read_files(SPECS, [f"x={tmp_path / 'x.bin'}"])


def test_an_input_file_without_a_name_is_an_error_when_there_are_several_inputs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not name its input"):
        read_files(SPECS, [str(tmp_path / "x.npy")])


def test_a_missing_or_foreign_input_file_is_an_explained_error(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError):
        read_files(SPECS, [str(tmp_path / "no.npz")])
    (tmp_path / "bad.npz").write_bytes(b"PK not a zip")
    with pytest.raises(FeedError):
        read_files(SPECS, [str(tmp_path / "bad.npz")])
    with pytest.raises(FeedError, match="there is no input 'z'"):
        read_files(SPECS, [f"z={tmp_path / 'x.npy'}"])


def test_a_pickled_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(FeedError):
        read_files(SPECS, [f"x={tmp_path / 'x.npy'}"])


def test_outputs_go_to_an_npz_or_one_npy_each(tmp_path: Path) -> None:
    results = {"a/b": np.ones(3, np.float32)}
    write_outputs(tmp_path / "out.npz", results)
    with np.load(tmp_path / "out.npz") as archive:
        assert np.array_equal(archive["a/b"], results["a/b"])
    write_outputs(tmp_path, results)
    assert np.array_equal(np.load(tmp_path / "a_b.npy"), results["a/b"])


def test_an_output_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputFileError, match="not a directory"):
        require_place(tmp_path / "file" / "out.npz", ())
    with pytest.raises(OutputFileError, match="neither"):
        write_outputs(tmp_path / "out.txt", {"y": np.ones(1)})
