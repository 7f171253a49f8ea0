"""Values of 4 and 8 bits and bfloat16, which numpy lacks, go through compile, check, run and verify."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from typer.testing import CliRunner

from heterocc.artifacts.errors import FeedError, OutputFileError
from heterocc.compiler import compile_model
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.cli.main import app
from heterocc.runtime import load
from heterocc.runtime.execute.narrow import from_ort, to_ort
from heterocc.runtime.files.inputs import read_inputs
from heterocc.runtime.files.outputs import write_outputs
from tests.compiler.onnx_build import model, node, save, value

KINDS = {
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
}
NUMBERS = [1, 2, 6, 3, 5]  # an odd count: 4-bit elements are stored in pairs
HALF = {"s": np.array(0.5, np.float32)}


def there_and_back(folder: Path, kind: str) -> Path:
    """`a`, of a narrow type, becomes `y = a / 2` and, through float32 on the CPU, `b = 2 a` of its own type."""
    nodes = [
        node("DequantizeLinear", "a s", "y", "read"),
        node("Add", "y y", "d", "double"),
        node("QuantizeLinear", "d s", "b", "write", output_dtype=KINDS[kind]),
    ]
    outputs = [value("y", [5]), value("b", [5], KINDS[kind])]
    return save(folder, model(nodes, [value("a", [5], KINDS[kind])], outputs, HALF, opset=21, ir_version=10))


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_outputs_that_numpy_lacks_run_and_are_verified(kind: str, tmp_path: Path) -> None:
    path, bundle = there_and_back(tmp_path, kind), tmp_path / "m.hcb"
    report = compile_model(path, bundle, devices="CPU,ORT")
    assert not report.warnings and not report.unchecked
    assert any("no golden vectors" in note and "'a'" in note for note in report.notes)
    given = np.array(NUMBERS).astype(getattr(ml_dtypes, kind))
    with load(bundle) as session:
        results = session.run({"a": given})
        drawn = read_inputs(bundle, session, (), 0)
        assert set(session.run(drawn)) == {"y", "b"}
        for wrong in (np.array(NUMBERS, np.int8), given[:4], [1, 2]):
            with pytest.raises(FeedError, match=r"input 'a' must"):
                session.run({"a": wrong})
    np.testing.assert_array_equal(results["y"], np.array(NUMBERS, np.float32) / 2)
    assert results["b"].dtype == given.dtype
    most = {"int4": 7, "uint4": 15}.get(kind, 100)
    np.testing.assert_array_equal(results["b"].astype(np.float32), np.minimum(np.array(NUMBERS) * 2.0, most))
    assert verify_bundle(bundle, path).ok


def test_bfloat16_at_the_borders_runs_if_onnx_runtime_has_the_operators(tmp_path: Path) -> None:
    bf16 = TensorProto.BFLOAT16
    nodes = [node("Cast", "a", "f", to=1), node("Sigmoid", "f", "g"), node("Cast", "g", "y", to=bf16)]
    path = save(tmp_path, model(nodes, [value("a", [4], bf16)], [value("y", [4], bf16)]))
    compile_model(path, tmp_path / "m.hcb", devices="CPU,ORT")
    assert verify_bundle(tmp_path / "m.hcb", path).checked
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "m.hcb"), "--json"])
    assert shown.exit_code == 0 and json.loads(shown.stdout)["outputs"]["y"]["dtype"] == "bfloat16"
    (tmp_path / "a.bin").write_bytes(np.zeros(4, np.uint16).tobytes())
    fed = CliRunner().invoke(app, ["run", str(tmp_path / "m.hcb"), "-i", str(tmp_path / "a.bin"), "--json"])
    assert json.loads(fed.stdout)["outputs"]["y"]["data"] == [0.5] * 4
    with pytest.raises(OutputFileError, match="bfloat16, which"):
        write_outputs(tmp_path / "o.npz", {"y": np.zeros(4, ml_dtypes.bfloat16)})


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.BFLOAT16, TensorProto.FLOAT8E5M2])
def test_large_weights_that_numpy_lacks_compile(kind: int, tmp_path: Path) -> None:
    numbers = np.arange(4096) % 7 - 3
    nodes = [node("Cast", "w", "f", to=1), node("Mul", "f x", "y")]
    weights = onnx.helper.make_tensor("w", kind, [64, 64], numbers.astype(np.float32).tolist())
    if kind == TensorProto.INT4:
        nodes[0] = node("DequantizeLinear", "w one", "f")
    made = model(nodes, [value("x", [64])], [value("y", [64, 64])], {"one": np.array(1, np.float32)}, opset=21)
    made.graph.initializer.append(weights)
    path = save(tmp_path, made)
    compile_model(path, tmp_path / "m.hcb", devices="CPU,ORT")
    with load(tmp_path / "m.hcb") as session:
        (y,) = session.run(None, {"x": np.ones(64, np.float32)})
    np.testing.assert_array_equal(y, numbers.reshape(64, 64))


@pytest.mark.parametrize("kind", ["int4", "uint4", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 3), (2, 4)], ids=str)
def test_a_value_comes_back_from_onnx_runtime_as_it_went_in(kind: str, shape: tuple[int, ...]) -> None:
    low = -4 if kind != "uint4" else 0
    given: Any = (np.arange(int(np.prod(shape))).reshape(shape) % 8 + low).astype(getattr(ml_dtypes, kind))
    back = from_ort(to_ort(given, kind))
    assert back.dtype == given.dtype and back.shape == shape
    np.testing.assert_array_equal(back.astype(np.float32), given.astype(np.float32))
