"""Products behind a DequantizeLinear of a constant matrix in blocks read its integers, and are exact."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.packed import PackedArray
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.reading import external_data
from heterocc.compiler.lower.converters.quantised import blocks
from heterocc.compiler.lower.converters.quantised.blocks import BlockedWeight, PackedCodes, unpacked
from heterocc.runtime import load
from heterocc.runtime.execute.ort_session import session_options
from tests.reference import reference_session


def _model(kind: str, op_type: str, block: int, terms: int, columns: int, *, zeros: bool) -> onnx.ModelProto:
    numbers = np.random.default_rng(0)
    turned = op_type == "Gemm"
    shape, counts = ([columns, terms], [columns, -(-terms // block)]) if turned else ([terms, columns], None)
    counts = counts or [-(-terms // block), columns]
    bits = 4 if kind.endswith("4") else 8
    least = 0 if kind.startswith("u") else -(1 << (bits - 1))

    def integers(name: str, sizes: list[int]) -> onnx.TensorProto:
        values = numbers.integers(least, least + (1 << bits), sizes)
        return helper.make_tensor(name, getattr(TensorProto, kind.upper()), sizes, values.ravel())

    scales = numpy_helper.from_array(numbers.uniform(0.01, 0.1, counts).astype(np.float32), "s")
    given = [integers("w", shape), scales, *([integers("z", counts)] if zeros else [])]
    nodes = [
        helper.make_node("DequantizeLinear", [t.name for t in given], ["d"], axis=int(turned), block_size=block),
        helper.make_node("Gemm", ["x", "d", "c"], ["y"], transB=1)
        if turned
        else helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    if turned:
        given.append(numpy_helper.from_array(numbers.standard_normal(columns).astype(np.float32), "c"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", terms])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", columns])
    graph = helper.make_graph(nodes, "product", [x], [y], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("kind", "op_type", "block", "zeros", "columns"),
    [
        ("int4", "MatMul", 32, False, 37),
        ("uint4", "Gemm", 16, True, 150),  # zero points that the import keeps packed, too
        ("uint4", "MatMul", 32, False, 38),
        ("int8", "Gemm", 64, True, 37),
    ],
)
def test_a_product_equals_onnx_runtime_without_fusion(
    kind: str, op_type: str, block: int, zeros: bool, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_data, "KEPT_PACKED", 0)
    model = _model(kind, op_type, block, 100, columns, zeros=zeros)
    path = saved(model, tmp_path)
    compile_model(path, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    reference = reference_session(model, session_options(optimise="none"))  # others round x to int8
    with load(tmp_path / "m.hcb") as session:
        for rows in (1, 5, 19):
            feed = {"x": np.random.default_rng(rows).standard_normal((rows, 100)).astype(np.float32)}
            (wanted,) = reference.run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    """The path of a model whose constants are in a file of their own."""
    external = onnx.ModelProto()
    external.CopyFrom(model)
    for tensor in external.graph.initializer:  # external data is raw
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(external, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx"


def test_weights_of_4_bits_keep_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved(_model("int4", "MatMul", 32, 1024, 256, zeros=False), tmp_path)
    assert sum(isinstance(array, PackedArray) for array in import_model(model, keep_dims=True).weights.values()) == 1
    bundles = []
    for least in (0, 1 << 30):  # the second time, the import unpacks them
        monkeypatch.setattr(external_data, "KEPT_PACKED", least)
        monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / str(least)))
        compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
        bundles.append((tmp_path / "m.hcb").read_bytes())
    assert bundles[0] == bundles[1]
    with open_bundle(tmp_path / "m.hcb") as bundle:
        stored = sum(weight.nbytes for weight in bundle.manifest.weights)
    assert stored == 1024 * 256 // 2 + 1024 * 256 // 32 * 4


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_are_rearranged_in_pieces_without_room_for_all_of_them(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of tokens has as many codes as a gigabyte has bytes."""
    columns, terms, block = 1000, 2048, 32
    packed = np.random.default_rng(1).integers(0, 256, (columns, terms * bits // 8), np.uint8)
    codes = PackedCodes(packed, bits, (columns, terms // block, block))
    scales = np.ones((columns, terms // block), np.float32)
    whole = BlockedWeight(bits, terms, unpacked(packed, bits).reshape(codes.shape), scales, 0).words()
    monkeypatch.setattr(blocks, "PIECE", 1 << 16)
    tracemalloc.start()
    words = BlockedWeight(bits, terms, codes, scales, 0).words()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(words, whole)
    assert peak < 1.5 * packed.nbytes + (1 << 20)
