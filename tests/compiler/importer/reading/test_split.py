"""Models whose large initializers are read apart from the rest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import InvalidGraphError, NotOnnxError
from heterocc.compiler.importer.reading.parse import parse_apart
from heterocc.compiler.importer.reading.read import read_model
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.reading.split import split_file
from tests.compiler.small import chain

LARGE = np.random.default_rng(0).standard_normal((130, 257)).astype(np.float32)
BYTES = np.arange(70_001, dtype=np.uint8)
SMALL = np.arange(5, dtype=np.int64)


def model(change: Callable[[onnx.TensorProto], None] = lambda _: None) -> onnx.ModelProto:
    """A model with two large initializers, of which `change` changes the first, around a small one."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (("a", LARGE), ("b", SMALL), ("c", BYTES))]
    change(tensors[0])
    nodes = [helper.make_node("Identity", [name], [f"y{name}"]) for name in "abc"]
    outputs = [
        helper.make_tensor_value_info(f"y{t.name}", t.data_type, a.shape)
        for t, a in zip(tensors, (LARGE, SMALL, BYTES), strict=True)
    ]
    graph = helper.make_graph(nodes, "g", [], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(folder: Path, made: onnx.ModelProto) -> ModelSource:
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return ModelSource(path)


def test_large_initializers_are_read_apart_with_the_digest_of_the_file(tmp_path: Path) -> None:
    source = saved(tmp_path, model())
    parsed = parse_apart(source)
    assert len(parsed.inside) == 2 and parsed.model.ByteSize() < 2000
    draft, digest = read_model(source)
    for name, array in (("a", LARGE), ("b", SMALL), ("c", BYTES)):
        found = draft.weights[name]
        assert found.flags.aligned and not found.flags.writeable and found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert digest() == hashlib.sha256(source.path.read_bytes()).hexdigest()


def test_a_model_in_memory_gives_the_same(tmp_path: Path) -> None:
    source = saved(tmp_path, model())
    draft, digest = read_model(source)
    same, also = read_model(ModelSource(source.path, source.path.read_bytes()))
    assert digest() == also() and draft.model == same.model
    assert all(np.array_equal(draft.weights[name], same.weights[name]) for name in "abc")


def floats(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.float_data.extend(LARGE.reshape(-1))


def test_data_in_typed_fields_is_read_with_the_rest(tmp_path: Path) -> None:
    source = saved(tmp_path, model(floats))
    assert len(parse_apart(source).inside) == 1
    np.testing.assert_array_equal(read_model(source)[0].weights["a"], LARGE)


def short(tensor: onnx.TensorProto) -> None:
    tensor.raw_data = tensor.raw_data[:-4]


def both(tensor: onnx.TensorProto) -> None:
    tensor.float_data.append(1.0)


def unknown(tensor: onnx.TensorProto) -> None:
    tensor.data_type = 99


def claimed(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="\0inside0")
    tensor.doc_string = "x" * 70_000


@pytest.mark.parametrize("change", [short, both, unknown])
def test_malformed_initializers_have_the_errors_of_the_whole_model(
    tmp_path: Path, change: Callable[[onnx.TensorProto], None]
) -> None:
    source = saved(tmp_path, model(change))
    with pytest.raises(InvalidGraphError) as apart:
        read_model(source)
    with pytest.raises(InvalidGraphError) as whole:
        read_model(ModelSource(source.path, source.path.read_bytes()))
    assert apart.value.message == whole.value.message


def test_a_model_that_names_the_place_of_another_initializer_reads_no_further_than_it(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"the tensor needs|the file has") as caught:
        read_model(saved(tmp_path, model(claimed)))
    assert getattr(caught.value, "code", "") == "HC105"


@pytest.mark.parametrize("end", [1, 40, 70_000, 140_000])
def test_a_file_that_is_cut_short_is_no_model(tmp_path: Path, end: int) -> None:
    source = saved(tmp_path, model())
    data = source.path.read_bytes()
    source.path.write_bytes(data[: len(data) - end])
    with pytest.raises(NotOnnxError):
        read_model(source)


def test_the_places_of_small_fields_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = chain(tmp_path / "m.onnx", 400)
    calls: list[int] = []
    real = os.preadv

    def counted(handle: int, buffers: list[memoryview], start: int) -> int:
        calls.append(start)
        return real(handle, buffers, start)

    monkeypatch.setattr(os, "preadv", counted)
    assert split_file(path, path.stat().st_size) is None
    assert len(calls) < 40
