"""Memory in a file for arrays of the size of a model's weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.files import memory
from heterocc.compiler.files.memory import Memory
from heterocc.compiler.importer.reading.parse import parse_apart
from heterocc.compiler.importer.reading.source import ModelSource
from tests.compiler.lower.lowered import model

SIZE = 2 << 20


def in_file(address: int) -> bool:
    """Whether memory of this process is that of a file without a name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.endswith("(deleted)")
    return False


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of a megabyte count as large."""
    monkeypatch.setattr(memory, "LARGE", 1 << 20)


def test_arrays_are_apart_and_aligned_and_in_a_file(small: None) -> None:
    sizes = (SIZE + 1, SIZE, 3)
    found = Memory(sizes)
    arrays = [found.take(size) for size in sizes]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [array.nbytes for array in arrays] == list(sizes) and all(a.ctypes.data % 64 == 0 for a in arrays)
    assert all((array == number).all() for number, array in enumerate(arrays))
    assert all(in_file(array.ctypes.data) for array in arrays)


def test_without_room_in_the_temporary_directory_memory_serves(
    small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    array = Memory([SIZE]).take(SIZE)
    array[:] = 1
    assert array.nbytes == SIZE and not in_file(array.ctypes.data)


def test_large_initializers_inside_a_model_are_in_a_file(small: None, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal(SIZE // 4, np.float32)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, weight.shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    (found,) = parse_apart(ModelSource(path)).inside.values()
    assert in_file(found.ctypes.data)
    np.testing.assert_array_equal(found.view(np.float32), weight)


def test_perturbed_weights_are_in_a_file(small: None) -> None:
    x, weight = np.ones((1, 1024), np.float32), np.ones((1024, SIZE // 4096), np.float32)
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": weight})
    plain = Reference(made, ["y"]).run({"x": x})["y"]
    reference = Reference(made, ["y"], shaken=True)
    assert in_file(reference._weights["w"].data_ptr())
    found = reference.run({"x": x})["y"]
    np.testing.assert_allclose(found, plain, rtol=1e-4)
    assert (found != plain).any()
