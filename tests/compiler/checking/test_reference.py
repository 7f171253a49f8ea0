"""Values that ONNX Runtime computes for a check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.checking.run_memory import RunLimit
from heterocc.compiler.importer.onnx_tools.late_constants import compute_constants_late
from heterocc.runtime.execute.ort_session import session_options
from tests.compiler.lower.lowered import model


def test_values_of_a_run_do_not_keep_the_memory_of_its_session() -> None:
    """It is gigabytes, as long as one array of them is held, where weights are dequantised to float32."""
    made = model([helper.make_node("Neg", ["x"], ["y"])], {"x": np.ones(8, np.float32)}, ["y"])
    found = Reference(made, ["y"]).run({"x": np.ones(8, np.float32)})["y"]
    assert found.flags.owndata


def test_a_session_reads_large_weights_where_they_are() -> None:
    """Copies of all weights would need as much memory as the model, and the bundle's are made meanwhile."""
    x = np.ones((1, 2048), np.float32)
    weight = np.random.default_rng(0).standard_normal((2048, 4096), np.float32)
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": weight})
    before = anonymous()
    reference = Reference(made, ["y"])
    assert anonymous() - before < weight.nbytes // 2
    np.testing.assert_allclose(reference.run({"x": x})["y"], x @ weight, atol=1e-3)


def anonymous() -> int:
    """Bytes of memory of this process that no file has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) << 10


@pytest.mark.parametrize("first", [False, True], ids=["each before its reader", "all before readers"])
def test_a_run_holds_the_float32_of_few_weights_at_a_time(first: bool) -> None:
    """ONNX Runtime's own order computes that of all weights before the first product, or one by one."""
    layers, size = 12, 512
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.integers(-128, 128, (size, size), np.int8) for i in range(layers)}
    widened = [helper.make_node("DequantizeLinear", [f"w{i}", "scale"], [f"f{i}"]) for i in range(layers)]
    products = [helper.make_node("MatMul", [f"y{i - 1}" if i else "x", f"f{i}"], [f"y{i}"]) for i in range(layers)]
    nodes = widened + products if first else [n for both in zip(widened, products, strict=True) for n in both]
    x = rng.standard_normal((1, size)).astype(np.float32)
    made = model(nodes, {"x": x}, [f"y{layers - 1}"], {**weights, "scale": np.array(0.001, np.float32)})
    limit = RunLimit(4 * 4 * size * size, None, 1 << 30)
    found = Reference(made, [f"y{layers - 1}"], limit=limit).run({"x": x})[f"y{layers - 1}"]
    wanted = x.astype(np.float64)
    for weight in weights.values():
        wanted = wanted @ (weight * 0.001)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * float(np.abs(wanted).max()))


def test_nodes_that_read_only_weights_are_written_before_their_readers() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[2] x, bool yes) => (float[2] y, float[2] alone) <float[2] w = {1.0, 2.0}> {
      a = Neg(w)
      b = Exp(a)
      alone = Abs(w)
      c = Sqrt(w)
      z = Relu(x)
      y = If(yes) <then_branch = one () => (float[2] p) { p = Add(b, z) },
                   else_branch = other () => (float[2] q) { q = Mul(c, z) }>
    }
    """
    made = onnx.parser.parse_model(text)
    compute_constants_late(made, session_options())
    assert [node.output[0] for node in made.graph.node] == ["z", "a", "b", "c", "y", "alone"]
    onnx.checker.check_model(made)
