"""Models of float16 and bfloat16 on the CPU: computed in float32, weights stored in 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.runtime import load

TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}
CODES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT}


def model(nodes: list[onnx.NodeProto], dtype: str, weights: dict[str, np.ndarray], **inputs: Any) -> onnx.ModelProto:
    """A model whose floating-point inputs, weights and output `y` have this dtype."""
    given = [
        helper.make_tensor_value_info(name, CODES[dtype] if kind == "f" else TensorProto.INT64, shape)
        for name, (kind, *shape) in inputs.items()
    ]
    kept = [
        numpy_helper.from_array(array.astype(TYPES[dtype]) if array.dtype.kind == "f" else array, name)
        for name, array in weights.items()
    ]
    graph = helper.make_graph(nodes, "m", given, [helper.make_tensor_value_info("y", CODES[dtype], None)], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def run(proto: onnx.ModelProto, folder: Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    onnx.save(proto, folder / "m.onnx")
    compile_model(folder / "m.onnx", folder / "m.hcb", devices="CPU", check=False)
    with load(folder / "m.hcb") as session:
        return np.asarray(session.run(feed)["y"])


def network() -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], dict[str, tuple[Any, ...]]]:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((32, 16, 3, 3)) / 12,
        "one": rng.standard_normal((48, 32, 1, 1)) / 6,
        "b": rng.standard_normal(48) / 4,
        "dense": rng.standard_normal((48, 48)) / 7,
        "table": rng.standard_normal((100, 48)),
        "big": np.array(3000.0),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "one", "b"], ["d"]),
        helper.make_node("ReduceMean", ["d", "axes"], ["m"], keepdims=0),
        helper.make_node("MatMul", ["m", "dense"], ["p"]),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Add", ["p", "rows"], ["s"]),
        # Beyond 65504 in between.
        helper.make_node("Mul", ["s", "big"], ["s1"]),
        helper.make_node("Mul", ["s1", "big"], ["s2"]),
        helper.make_node("Div", ["s2", "big"], ["s3"]),
        helper.make_node("Div", ["s3", "big"], ["s4"]),
        helper.make_node("Tanh", ["s4"], ["y"]),
    ]
    return nodes, {**weights, "axes": np.array([2, 3])}, {"x": ("f", 1, 16, 9, 9), "ids": ("i", 3)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_are_those_of_float32_rounded_once(dtype: str, tmp_path: Path) -> None:
    nodes, weights, inputs = network()
    weights = {n: a.astype(TYPES[dtype]).astype("float32") if a.dtype.kind == "f" else a for n, a in weights.items()}
    x = np.random.default_rng(1).standard_normal((1, 16, 9, 9)).astype(TYPES[dtype])
    ids = np.array([3, 99, 0])
    expected = run(model(nodes, "float32", weights, **inputs), tmp_path, {"x": x.astype("float32"), "ids": ids})
    found = run(model(nodes, dtype, weights, **inputs), tmp_path, {"x": x, "ids": ids})
    assert found.dtype == TYPES[dtype] and np.isfinite(expected).all()
    bits, rounded = found.view(np.uint16), expected.astype(TYPES[dtype]).view(np.uint16)
    assert np.abs(bits.astype(int) - rounded.astype(int)).max() <= 1  # sums in another order may round otherwise
    assert (bits == rounded).mean() > 0.95
    with open_bundle(tmp_path / "m.hcb") as bundle:
        stored = {w.dtype for w in bundle.manifest.weights if w.nbytes >= 8192}
        assert stored == {"float16" if dtype == "float16" else "uint16"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_casts_round_and_bits_are_those_of_the_type(dtype: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "third"], ["a"]),
        helper.make_node("Cast", ["a"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["narrow"], to=CODES[dtype]),
        helper.make_node("Cast", ["narrow"], ["rounded"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["wide", "rounded"], ["lost"]),
        helper.make_node("Cast", ["lost"], ["y"], to=CODES[dtype]),
    ]
    x = np.linspace(-4, 4, 33).astype(TYPES[dtype])
    third = np.array([1 / 3]).astype(TYPES[dtype])
    found = run(model(nodes, dtype, {"third": third.astype("float64")}, x=("f", 33)), tmp_path, {"x": x})
    wide = x.astype("float32") * third.astype("float32")
    lost = (wide - wide.astype(TYPES[dtype]).astype("float32")).astype(TYPES[dtype])
    np.testing.assert_array_equal(found, lost)
    assert np.any(found != 0)


def test_the_bits_of_a_computed_number_are_of_its_rounded_value(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "third"], ["a"]),
        helper.make_node("BitCast", ["a"], ["bits"], to=TensorProto.UINT16),
        helper.make_node("BitCast", ["bits"], ["b"], to=TensorProto.FLOAT16),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    proto = model(nodes, "float16", {"third": np.array([1 / 3])}, x=("f", 33))
    proto.opset_import[0].version = 26
    x = np.linspace(-4, 4, 33).astype(np.float16)
    expected = -(x.astype("float32") * np.float32(np.float16(1 / 3))).astype(np.float16)
    np.testing.assert_array_equal(run(proto, tmp_path, {"x": x}), expected)


@pytest.mark.parametrize("batch", ["batch", 2])
def test_a_loop_and_a_dynamic_batch_pass_16_bits_on(batch: Any, tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("MatMul", ["state", "w"], ["p"]),
            helper.make_node("Tanh", ["p"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT16, [batch, 8]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT16, [batch, 8]),
        ],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)]
    weight = np.random.default_rng(2).standard_normal((8, 8)) / 3
    proto = model(nodes, "float16", {"w": weight}, n=("i",), x=("f", batch, 8))
    x = np.random.default_rng(3).standard_normal((2, 8)).astype(np.float16)
    found = run(proto, tmp_path, {"n": np.array(4), "x": x})
    state = x.astype("float32")
    for _ in range(4):
        state = np.tanh(state @ weight.astype(np.float16).astype("float32"))
    np.testing.assert_allclose(found, state, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_table_that_is_read_transposed_too_is_stored_once_and_stays_in_16_bits(dtype: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "dense"], ["p"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["p", "turned"], ["y"]),
    ]
    rng = np.random.default_rng(4)
    weights = {"table": rng.standard_normal((250, 48)), "dense": rng.standard_normal((48, 48)) / 7}
    ids = np.array([3, 249, 0, 77, 8])
    found = run(model(nodes, dtype, weights, ids=("i", 5)), tmp_path, {"ids": ids})
    table, dense = (w.astype(TYPES[dtype]).astype("float64") for w in weights.values())
    wanted = table[ids] @ dense @ table.T
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=0.01, atol=0.01 * np.abs(wanted).max())
    with open_bundle(tmp_path / "m.hcb") as bundle:
        assert sum(w.nbytes for w in bundle.manifest.weights) < 2 * (table.size + dense.size) + 4096
        layouts = [one for p in bundle.manifest.variants[0].partitions for one in p.layouts.values()]
        assert layouts and all(one.widens is None for one in layouts), "a run widens the weights of a product"
