"""Constants of int8 that a model casts and scales itself keep their integers, and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.runtime import load
from tests.compiler.small import save
from tests.reference import reference_session

CAST = {"to": TensorProto.FLOAT}


def scaled(name: str, *, turned: bool = False, zero: bool = False, first: bool = True) -> list[onnx.NodeProto]:
    """Nodes from the integers `name` to `name`_w: Cast, perhaps Sub of a zero point, Mul, perhaps Transpose."""
    nodes = [helper.make_node("Cast", [name], [f"{name}_f"], **CAST)]
    last = f"{name}_f"
    if zero:
        nodes.append(helper.make_node("Sub", [last, f"{name}_zero"], [f"{name}_d"]))
        last = f"{name}_d"
    factors = [last, f"{name}_scale"] if first else [f"{name}_scale", last]
    result = f"{name}_m" if turned else f"{name}_w"
    nodes.append(helper.make_node("Mul", factors, [result], name=f"{name}_mul"))
    if turned:
        nodes.append(helper.make_node("Transpose", [result], [f"{name}_w"], perm=[1, 0], name=f"{name}_turn"))
    return nodes


def weights(kind: type = np.int8) -> dict[str, np.ndarray]:
    """A table with a scale for each row, and matrices with a scale for each column, for each row, and for all."""
    rng = np.random.default_rng(4)
    limits = np.iinfo(kind)

    def drawn(*shape: int) -> np.ndarray:
        return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)

    def scales(*shape: int) -> np.ndarray:
        return rng.uniform(0.001, 0.01, shape).astype(np.float32)

    return {
        "table": drawn(90, 100),
        "table_scale": scales(90, 1),
        "table_zero": rng.integers(limits.min, limits.max, (90, 1)).astype(np.float32),
        "up": drawn(100, 96),
        "up_scale": scales(96),
        "up_zero": rng.integers(limits.min, limits.max, (1, 96)).astype(np.float32),
        "down": drawn(64, 96),
        "down_scale": scales(64, 1),
        "down_zero": np.array(3, np.float32),
        "bias": scales(64),
        "last": drawn(64, 70),
        "last_scale": scales(),
    }


def network(path: Path, *, zero: bool = False, kind: type = np.int8) -> Path:
    """ids [n] → Gather → MatMul → MatMul with a transposed weight → Gemm → y [n, 70]."""
    nodes = [
        *scaled("table", zero=zero, first=False),
        *scaled("up", zero=zero),
        *scaled("down", zero=zero, turned=True),
        *scaled("last"),
        helper.make_node("Gather", ["table_w", "ids"], ["a"]),
        helper.make_node("MatMul", ["a", "up_w"], ["b"]),
        helper.make_node("MatMul", ["b", "down_w"], ["c"]),
        helper.make_node("Add", ["c", "bias"], ["d"]),
        helper.make_node("Gemm", ["d", "last_w"], ["y"]),
    ]
    save(path, nodes, {"ids": ["n"]}, {"y": ["n", 70]}, weights(kind))
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("zero", [False, True])
def test_casts_and_products_by_scales_become_dequantize_linear(tmp_path: Path, zero: bool) -> None:
    model = import_model(network(tmp_path / "m.onnx", zero=zero), keep_dims=True)
    types = [node.op_type for node in model.graph.nodes]
    assert sorted(types) == sorted(["DequantizeLinear"] * 4 + ["Gather", "MatMul", "MatMul", "Add", "Gemm"])


@pytest.mark.parametrize(("zero", "kind"), [(False, np.int8), (True, np.uint8)])
def test_a_bundle_keeps_the_integers_and_computes_the_same(tmp_path: Path, zero: bool, kind: type) -> None:
    path, bundle = network(tmp_path / "m.onnx", zero=zero, kind=kind), tmp_path / "m.hcb"
    compile_model(path, bundle, devices="CPU", measure=False)
    given = sum(a.nbytes for a in weights(kind).values())
    assert sum(w.nbytes for w in open_bundle(bundle).manifest.weights) < 1.1 * given + 4096
    reference = reference_session(path)
    with load(bundle) as session:
        for rows in (1, 5, 40):
            feed = {"ids": np.random.default_rng(rows).integers(0, 90, rows)}
            wanted = reference.run(None, feed)[0]
            np.testing.assert_allclose(session.run(feed)["y"], wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"up_scale": np.ones((100, 96), np.float32)}, "a scale for each number"),
        ({"up_zero": np.full((1, 96), 0.5, np.float32)}, "a zero point between integers"),
        ({"up_zero": np.full((1, 96), 500, np.float32)}, "a zero point that int8 lacks"),
        ({"up": np.ones((2, 50, 96), np.int8)}, "a stack of matrices"),
    ],
)
def test_other_forms_are_computed_when_importing(tmp_path: Path, change: dict[str, np.ndarray], reason: str) -> None:
    nodes = [*scaled("up", zero=True), helper.make_node("MatMul", ["x", "up_w"], ["y"])]
    given = {name: array for name, array in weights().items() if name.startswith("up")} | change
    path = save(tmp_path / "m.onnx", nodes, {"x": [3, given["up"].shape[-2]]}, {"y": [None, None]}, given)
    model = import_model(path)
    assert [node.op_type for node in model.graph.nodes] == ["MatMul"], reason


def test_what_else_reads_the_weight_gets_its_numbers(tmp_path: Path) -> None:
    nodes = [
        *scaled("up"),
        helper.make_node("MatMul", ["x", "up_w"], ["a"]),
        helper.make_node("Add", ["up_w", "up_w"], ["y"]),
        helper.make_node("ReduceSum", ["a"], ["z"]),
    ]
    given = {name: array for name, array in weights().items() if name.startswith("up")}
    path = save(tmp_path / "m.onnx", nodes, {"x": [3, 100]}, {"y": [100, 96], "z": [1, 1]}, given)
    assert "DequantizeLinear" not in [node.op_type for node in import_model(path).graph.nodes]


def test_few_rows_of_one_large_number_lose_no_digits(tmp_path: Path) -> None:
    """A sum of codes less the zero point times the sum of the other factor would lose three."""
    rng = np.random.default_rng(9)
    codes = np.clip(np.rint(rng.standard_normal((512, 64)) * 20), -128, 127).astype(np.int8)
    codes[5] = 0  # that the number meets
    given = {"up": codes, "up_scale": np.full(64, 0.01, np.float32)}
    nodes = [*scaled("up"), helper.make_node("MatMul", ["x", "up_w"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 512]}, {"y": [2, 64]}, given)
    x = rng.standard_normal((2, 512)).astype(np.float32)
    x[:, 5] = 1000
    exact = x.astype(np.float64) @ (codes.astype(np.float64) * np.float32(0.01))
    compile_model(path, tmp_path / "m.hcb", devices="CPU", measure=False)
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"x": x})["y"]
    assert np.abs(found - exact).max() < 1e-5 * np.abs(exact).max()
