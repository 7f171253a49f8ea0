"""Models that are given as bytes or as a ModelProto."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.artifacts.errors import ExternalDataError, NotOnnxError, UsageError
from heterocc.compiler import compile_model, import_model, partition_model, query_model
from tests.compiler.small import conv_net


def external_net(folder: Path) -> Path:
    proto = onnx.load(conv_net(folder / "inline.onnx"))
    path = folder / "external.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("form", ["bytes", "bytearray", "memoryview", "proto"])
def test_a_model_in_memory_is_imported_as_its_file_is(form: str, tmp_path: Path) -> None:
    path = conv_net(tmp_path / "model.onnx")
    data = path.read_bytes()
    given = {"bytes": data, "bytearray": bytearray(data), "memoryview": memoryview(data), "proto": onnx.load(path)}
    found, expected = import_model(given[form]), import_model(path)
    assert found.graph == expected.graph and found.sha256 == expected.sha256
    np.testing.assert_array_equal(found.weights["w1"], expected.weights["w1"])


def test_bytes_and_a_file_of_them_make_the_same_bundle(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "model.onnx")
    compile_model(path, tmp_path / "a.hcb", devices="CPU", check=False)
    compile_model(path.read_bytes(), tmp_path / "b.hcb", devices="CPU", check=False)
    assert (tmp_path / "a.hcb").read_bytes() == (tmp_path / "b.hcb").read_bytes()


def test_partition_and_query_take_models_in_memory_too(tmp_path: Path) -> None:
    proto = onnx.load(conv_net(tmp_path / "m.onnx"))
    assert partition_model(proto, devices="CPU").plan.partitions[0].device == "CPU"
    assert query_model(proto.SerializeToString(), "CPU")["conv1"] == "CPU"


def test_a_model_in_memory_needs_an_output_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no default name for the bundle"):
        compile_model(conv_net(tmp_path / "m.onnx").read_bytes())


def test_external_data_of_a_model_in_memory_is_refused_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = external_net(tmp_path)
    monkeypatch.chdir(tmp_path)  # the folder of the data, which must not be found by chance
    with pytest.raises(ExternalDataError) as caught:
        import_model(path.read_bytes())
    assert "base_dir" in str(caught.value.hint)


def test_base_dir_is_the_folder_of_external_data_and_is_left_by_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    path = external_net(folder)
    proto = onnx.load(path, load_external_data=False)
    found = import_model(proto, base_dir=folder)
    np.testing.assert_array_equal(found.weights["w1"], import_model(path).weights["w1"])
    compile_model(proto, tmp_path / "m.hcb", base_dir=folder, devices="CPU", stop_after="partition")
    assert query_model(proto, "CPU", base_dir=folder).nowhere == ()
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../inside/weights.bin"
    with pytest.raises(ExternalDataError, match="leaves the model's folder"):
        import_model(proto, base_dir=folder)


def test_base_dir_beside_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="base_dir is for a model without a file"):
        import_model(tmp_path / "m.onnx", base_dir=tmp_path)


@pytest.mark.parametrize("given", [None, 3, {"graph": 1}, onnx.GraphProto()])
def test_what_is_no_model_is_refused_by_its_type(given: object) -> None:
    with pytest.raises(UsageError, match=f"not {type(given).__name__}"):
        import_model(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"no model", bytes(range(256))])
def test_bytes_that_are_no_model_are_a_typed_error(data: bytes) -> None:
    with pytest.raises(NotOnnxError):
        import_model(data)
