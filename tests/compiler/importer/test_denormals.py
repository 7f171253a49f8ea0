"""Denormal constants are zeros for code of CPUs, unless a device keeps them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.compiler.importer.denormals import zeroed
from heterocc.runtime import load


def _added(constant: np.ndarray) -> ModelProto:
    """The constant, multiplied by the input and as it is."""
    nodes = [helper.make_node("Mul", ["x", "c"], ["y"]), helper.make_node("Concat", ["c", "x"], ["z"], axis=0)]
    shape, twice = list(constant.shape), [2 * constant.shape[0]]
    graph = helper.make_graph(
        nodes,
        "constants",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, twice),
        ],
        [numpy_helper.from_array(constant, "c")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_compile_for_cpus_stores_zeros_for_denormal_constants_and_says_so(
    tmp_path: Path, devices: str, kept: bool
) -> None:
    constant = np.linspace(-1, 1, 4096, dtype=np.float32)
    constant[7:9] = 1e-39, -1e-39
    path = tmp_path / "m.hcb"
    properties = ["CPU.denormals=on"] if kept else []
    report = compile_model(_added(constant), path, devices=devices, properties=properties)
    told = [note for note in report.notes if "denormal" in note]
    joined = load(path).run({"x": np.ones(4096, np.float32)})["z"][:4096]
    if kept:
        assert not told
        np.testing.assert_array_equal(joined.view(np.uint32), constant.view(np.uint32))
    else:
        (note,) = told
        assert note.startswith("1 constant has denormal numbers") and "denormals=on" in note
        assert not joined[7:9].any() and np.signbit(joined[7:9]).tolist() == [False, True]
        np.testing.assert_array_equal(np.delete(joined, [7, 8]), np.delete(constant, [7, 8]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("order", ["C", "F"])
def test_only_denormal_numbers_are_replaced(dtype: type, order: str) -> None:
    least = np.float64(ml_dtypes.finfo(dtype).smallest_normal)
    array = np.zeros((300, 400), dtype, order=order)  # type: ignore[call-overload]
    array[:] = 1
    array[1, 2], array[299, 399], array[3, 4], array[5, 6] = least / 4, -least / 2, least, np.inf
    array[7, 8] = np.nan
    given = array.copy(order=order)  # type: ignore[call-overload]
    found = zeroed(array)
    changed = np.argwhere(np.asarray(found != given, bool) & ~np.isnan(given.astype(np.float64)))
    assert changed.tolist() == [[1, 2], [299, 399]]
    assert found[1, 2] == found[299, 399] == 0 and found.strides == array.strides
    assert array.tobytes() == given.tobytes()


def test_arrays_without_denormal_numbers_are_not_copied() -> None:
    for array in (np.zeros(9, np.float32), np.full(9, 1e-7, np.float16), np.arange(9)):
        assert zeroed(array) is array
