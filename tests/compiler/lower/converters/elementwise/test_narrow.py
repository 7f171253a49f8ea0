"""Values of dtypes that numpy lacks, computed on the CPU alone."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.compiler.conformance.onnx_backend import prepare
from heterocc.compiler.importer.draft.draft import to_array
from heterocc.runtime.execute.narrow import carried
from tests.compiler.onnx_build import model, node, value

KINDS = {
    "bfloat16": TensorProto.BFLOAT16,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
}
FLOATS = tuple(KINDS)[:5]
LARGEST = {name: float(ml_dtypes.finfo(name).max) for name in FLOATS}


def dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name))


def run(proto: onnx.ModelProto, *given: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    with prepare(proto, "CPU", check=False, cpu_variant=False) as prepared:
        return prepared.run(list(given))


def numbers() -> np.ndarray[Any, Any]:
    """Every float16, its neighbours in float32, and numbers of all magnitudes."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        around = [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 1 << 14, dtype=np.uint32).view(np.float32)
    return np.concatenate([*around, drawn])


def same(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Equal with their signs of zero, and NaN in the same places."""
    assert got.dtype == expected.dtype
    a, b = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(a, b)
    finite = ~np.isnan(a)
    np.testing.assert_array_equal(np.signbit(a[finite]), np.signbit(b[finite]))


def test_every_kind_of_number_is_rounded_as_ml_dtypes_does_and_saturated_if_requested() -> None:
    x = numbers()
    with np.errstate(invalid="ignore"):
        nodes = [node("Cast", "x", f"{k}_{s}", f"{k}_{s}", to=KINDS[k], saturate=s) for k in FLOATS for s in (0, 1)]
        outputs = [value(n.output[0], [x.size], KINDS[n.output[0][:-2]]) for n in nodes]
        results = iter(run(model(nodes, [value("x", [x.size])], outputs, opset=21), x))
        for name in FLOATS:
            same(next(results), x.astype(dtype(name)))
            most = np.inf if name == "bfloat16" else LARGEST[name]
            same(next(results), np.clip(x, -most, most).astype(dtype(name)))


@pytest.mark.parametrize("name", KINDS)
def test_every_code_is_read_and_written_unchanged(name: str) -> None:
    bits = {"bfloat16": np.uint16, "int4": np.int8, "uint4": np.uint8}.get(name, np.uint8)
    if name == "bfloat16":
        x = np.arange(1 << 16, dtype=bits).view(dtype(name))
    elif name in FLOATS:
        x = np.arange(256, dtype=bits).view(dtype(name))
    else:
        x = np.arange(16, dtype=np.int8).astype(dtype(name))
    nodes = [node("Cast", "x", "y", "read", to=1), node("Cast", "y", "z", "write", to=KINDS[name], saturate=0)]
    ends = [value("y", [x.size]), value("z", [x.size], KINDS[name])]
    y, z = run(model(nodes, [value("x", [x.size], KINDS[name])], ends, opset=21), x)
    np.testing.assert_array_equal(y, x.astype(np.float32))
    np.testing.assert_array_equal(z.astype(np.float32), x.astype(np.float32))


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    kind, bf16 = TensorProto.BFLOAT16, dtype("bfloat16")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32).astype(bf16) for s in ((4, 8), (8, 3)))
    nodes = [node("MatMul", "x w", "p", "product"), node("Transpose", "p", "t", "turn"), node("Add", "t t", "y", "add")]
    proto = model(nodes, [value("x", [4, 8], kind)], [value("y", [3, 4], kind)], {"w": w}, opset=21)
    product = (x.astype(np.float32) @ w.astype(np.float32)).astype(bf16)
    same(run(proto, x)[0], (product + product).T)


@pytest.mark.parametrize("constant", [True, False])
def test_weights_of_four_bits_with_scales_by_block_are_converted_at_use(constant: bool) -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-8, 8, (8, 6)).astype(dtype("int4"))
    x, scale = rng.standard_normal((2, 8)).astype(np.float32), rng.random((2, 6)).astype(np.float32)
    nodes = [node("DequantizeLinear", "w s", "r", "read", axis=0, block_size=4), node("MatMul", "x r", "y", "product")]
    known = {"w": w, "s": scale} if constant else {"w": w}
    inputs = [value("x", [2, 8]), *([] if constant else [value("s", [2, 6])])]
    proto = model(nodes, inputs, [value("y", [2, 6])], known, opset=21)
    got = run(proto, x, *([] if constant else [scale]))[0]
    np.testing.assert_allclose(got, x @ (w.astype(np.float32) * np.repeat(scale, 4, 0)), rtol=1e-5, atol=1e-5)


def test_data_is_quantised_to_four_bits_by_block() -> None:
    x = np.linspace(-9, 9, 16, dtype=np.float32).reshape(2, 8)
    scale = np.array([[0.5, 1], [1, 2]], np.float32)
    proto = model(
        [node("QuantizeLinear", "x s", "y", "write", axis=1, block_size=4, output_dtype=KINDS["int4"])],
        [value("x", [2, 8])],
        [value("y", [2, 8], KINDS["int4"])],
        {"s": scale},
        opset=21,
    )
    expected = np.clip(np.round(x / np.repeat(scale, 4, 1)), -8, 7)
    np.testing.assert_array_equal(run(proto, x)[0].astype(np.float32), expected)


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_integers_of_4_bits_are_copied_for_code_only_if_their_upper_bits_are_set(name: str) -> None:
    values = np.arange(-8, 8) if name == "int4" else np.arange(16)
    array = to_array(helper.make_tensor("w", KINDS[name], values.shape, values))
    found = carried(array, name)
    np.testing.assert_array_equal(found, values)
    assert np.shares_memory(found, array)
    odd = (values ^ 0x50).astype(np.uint8).view(dtype(name))
    np.testing.assert_array_equal(carried(odd, name), values)
