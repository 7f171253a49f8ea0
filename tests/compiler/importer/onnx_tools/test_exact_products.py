"""Integer products in ONNX Runtime: the exact sums on every CPU, where its own saturate on x86 without VNNI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.compiler.importer.onnx_tools.exact_products import with_exact_products
from heterocc.runtime import load
from heterocc.runtime.execute.ort_session import open_session, session_options

Arrays = Mapping[str, np.ndarray[Any, Any]]
MICROSOFT = "com.microsoft"
KINDS = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8}
LARGE = np.arange(70, 128).astype(np.int8)
"""Weights whose products with large data saturate in 16 bits."""


def made(nodes: Sequence[onnx.NodeProto], feed: Arrays, weights: Arrays, kind: int) -> onnx.ModelProto:
    """A model with one output `y`."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feed.items()
    ]
    output = helper.make_tensor_value_info("y", kind, None)
    tensors = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)], ir_version=8
    )


def run(model: onnx.ModelProto, feed: Arrays) -> Any:
    """What ONNX Runtime computes for the model with exact products, none of which has factors of int8."""
    changed = with_exact_products(model)
    session = open_session(changed.SerializeToString(), session_options(optimise="none"))
    return session.run(["y"], dict(feed))[0]


def data(dtype: type, *shape: int) -> Any:
    """Large numbers of a dtype."""
    most = np.iinfo(dtype).max
    return np.random.default_rng(4).integers(most - 60, most + 1, shape).astype(dtype)


def weights(*shape: int) -> Any:
    """Large weights."""
    return np.random.default_rng(5).choice(LARGE, shape)


def quantised(sums: Any, scale: float, zero: int, dtype: type) -> Any:
    """`sums * scale + zero`, rounded and saturated."""
    limits = np.iinfo(dtype)
    return np.clip(np.rint(sums * np.float32(scale)).astype(np.int64) + zero, limits.min, limits.max)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("zeros", [False, True])
def test_matrix_products_of_integers_are_exact(dtype: type, zeros: bool) -> None:
    a, b = data(dtype, 5, 64), weights(64, 9)
    za, zb = np.array(3, dtype), np.arange(-4, 5).astype(np.int8)
    nodes = [helper.make_node("MatMulInteger", ["a", "b", *(("za", "zb") if zeros else ())], ["y"])]
    model = made(nodes, {"a": a}, {"b": b, **({"za": za, "zb": zb} if zeros else {})}, TensorProto.INT32)
    left, right = (
        (a.astype(np.int64) - 3, b - zb.astype(np.int64)) if zeros else (a.astype(np.int64), b.astype(np.int64))
    )
    np.testing.assert_array_equal(run(model, {"a": a}), left @ right)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantised_matrix_products_are_exact(dtype: type) -> None:
    a, b = data(dtype, 5, 64), weights(64, 9)
    parameters = {"b": b, "sa": np.float32(0.01), "za": np.array(3, dtype), "sb": np.float32(0.02), "zb": np.int8(0)}
    more = {"sy": np.float32(2), "zy": np.array(5, dtype)}
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    values = {n: np.asarray(v) for n, v in {**parameters, **more}.items()}
    model = made([helper.make_node("QLinearMatMul", names, ["y"])], {"a": a}, values, KINDS[np.dtype(dtype)])
    right = quantised((a.astype(np.int64) - 3) @ b.astype(np.int64), 1e-4, 5, dtype)
    found = run(model, {"a": a})
    assert found.dtype == dtype and np.abs(found.astype(np.int64) - right).max() <= 1  # ties of rounded scales


@pytest.mark.parametrize("operator", ["ConvInteger", "QLinearConv"])
def test_convolutions_of_integers_are_exact(operator: str) -> None:
    x, w = data(np.uint8, 1, 16, 6, 6), weights(12, 16, 3, 3)
    padded = np.pad(x.astype(np.int64) - 3, ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums: Any = sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + 6, j : j + 6], w[:, :, i, j].astype(np.int64))
        for i in range(3)
        for j in range(3)
    )
    zero = np.array(3, np.uint8)
    if operator == "ConvInteger":
        node = helper.make_node(operator, ["x", "w", "zx"], ["y"], pads=[1] * 4)
        found = run(made([node], {"x": x}, {"w": w, "zx": zero}, TensorProto.INT32), {"x": x})
        np.testing.assert_array_equal(found, sums)
        return
    scales = {"sx": np.float32(0.01), "sw": np.full(12, 0.02, "f"), "sy": np.float32(40), "zw": np.zeros(12, np.int8)}
    values = {n: np.asarray(v) for n, v in {**scales, "w": w, "zx": zero, "zy": np.uint8(7)}.items()}
    node = helper.make_node(operator, ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["y"], pads=[1] * 4)
    found = run(made([node], {"x": x}, values, TensorProto.UINT8), {"x": x})
    assert np.abs(found.astype(np.int64) - quantised(sums, 5e-6, 7, np.uint8)).max() <= 1


@pytest.mark.parametrize("operator", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm"])
def test_products_of_onnx_runtimes_domain_are_exact(operator: str) -> None:
    a, b = data(np.uint8, 5, 64), weights(64, 9)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    one = np.asarray(np.float32(1))
    if operator == "DynamicQuantizeMatMul":
        feed, names, values = {"x": a.astype("f")}, ["x", "b", "one"], {"b": b, "one": one}
    elif operator == "QGemm":
        zeros = {"za": np.asarray(np.uint8(0)), "zb": np.asarray(np.int8(0))}
        feed, names, values = {"a": a}, ["a", "one", "za", "b", "one", "zb"], {"b": b, "one": one, **zeros}
    else:
        feed, names, values = {"a": a}, ["a", "b", "one", "one"], {"b": b, "one": one}
    found = run(
        made([helper.make_node(operator, names, ["y"], domain=MICROSOFT)], feed, values, TensorProto.FLOAT), feed
    )
    np.testing.assert_allclose(found, exact, rtol=1e-2 if operator == "DynamicQuantizeMatMul" else 1e-6)


def test_a_body_may_convert_a_value_of_the_graph_around_it() -> None:
    a, b, yes = data(np.uint8, 5, 64), weights(64, 9), np.array(True)

    def branch(name: str) -> onnx.GraphProto:
        node = helper.make_node("MatMulInteger", ["a", "b"], [name])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.INT32, None)])

    nodes = [
        helper.make_node("If", ["yes"], ["i"], then_branch=branch("t"), else_branch=branch("e")),
        helper.make_node("MatMulInteger", ["a", "b"], ["m"]),
        helper.make_node("Add", ["i", "m"], ["y"]),
    ]
    feed = {"a": a, "yes": yes}
    found = run(made(nodes, feed, {"b": b}, TensorProto.INT32), feed)
    np.testing.assert_array_equal(found, 2 * (a.astype(np.int64) @ b.astype(np.int64)))


def test_a_model_without_factors_of_int8_stays_as_it_is() -> None:
    a, b = data(np.uint8, 5, 64), data(np.uint8, 64, 9)
    product = made([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], {"a": a}, {"b": b}, TensorProto.INT32)
    assert with_exact_products(product).SerializeToString() == product.SerializeToString()
    other = made([helper.make_node("Relu", ["x"], ["y"])], {"x": np.zeros(3, "f")}, {}, TensorProto.FLOAT)
    assert with_exact_products(other) is other


@pytest.mark.parametrize("devices", ["CPU", "ORT"])
def test_a_product_that_would_saturate_compiles_and_is_exact(devices: str, tmp_path: Any) -> None:
    """The check compares with the exact result, and ONNX Runtime as a device computes it."""
    a, b = data(np.uint8, 5, 64), weights(64, 9)
    model = made([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], {"a": a}, {"b": b}, TensorProto.INT32)
    compile_model(model, tmp_path / "m.hcb", devices=devices)
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"a": a})["y"]
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))
