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

SIZE = 8 << 20


def anonymous() -> int:
    """Bytes of memory of this process that no file has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) << 10


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of a megabyte count as large."""
    monkeypatch.setattr(memory, "LARGE", 1 << 20)


def test_arrays_are_apart_and_aligned_and_in_a_file(small: None) -> None:
    before = anonymous()
    sizes = (SIZE + 1, SIZE, 3)
    found = Memory(sizes)
    arrays = [found.take(size) for size in sizes]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [array.nbytes for array in arrays] == list(sizes) and all(a.ctypes.data % 64 == 0 for a in arrays)
    assert all((array == number).all() for number, array in enumerate(arrays))
    assert anonymous() - before < SIZE


def test_without_room_in_the_temporary_directory_memory_serves(
    small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    array = Memory([SIZE]).take(SIZE)
    array[:] = 1
    assert array.nbytes == SIZE


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
    before = anonymous()
    parsed = parse_apart(ModelSource(path))
    parsed.digest()
    assert anonymous() - before < SIZE // 2
    np.testing.assert_array_equal(next(iter(parsed.inside.values())).view(np.float32), weight)


def test_perturbed_weights_are_in_a_file(small: None) -> None:
    x, weight = np.ones((1, 1024), np.float32), np.ones((1024, 3 * SIZE // 4096), np.float32)
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": weight})
    plain = Reference(made, ["y"]).run({"x": x})["y"]
    before = anonymous()
    reference = Reference(made, ["y"], shaken=True)
    found = reference.run({"x": x})["y"]
    assert anonymous() - before < weight.nbytes // 2
    np.testing.assert_allclose(found, plain, rtol=1e-4)
    assert (found != plain).any()
