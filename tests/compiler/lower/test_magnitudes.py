"""Values that exceed float16 though the model's others do not: squares of outliers, sums of large maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.magnitudes import may_exceed
from heterocc.runtime import load
from heterocc.runtime.native import vulkan_unavailable_reason
from tests.compiler.onnx_build import model, node, run_original, save, value

needs_vulkan = pytest.mark.skipif(
    vulkan_unavailable_reason() is not None, reason=f"no Vulkan device: {vulkan_unavailable_reason()}"
)


def rows() -> np.ndarray:
    """Two rows with an outlier whose square exceeds 65504."""
    found = np.random.default_rng(0).standard_normal((2, 64))
    found[0, 3], found[1, 5] = 2000, -1800
    return found


VARIANCE = [node("ReduceMean", "p", "v", axes=[-1]), node("Add", "v e", "ve"), node("Sqrt", "ve", "s")]
CENTRED = [node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d")]
KINDS = {
    "layer normalisation by powers": (
        [*CENTRED, node("Pow", "d two", "p"), *VARIANCE, node("Div", "d s", "y")],
        rows(),
    ),
    "layer normalisation by products": (
        [*CENTRED, node("Mul", "d d", "p"), *VARIANCE, node("Div", "d s", "y")],
        rows(),
    ),
    "root mean squares": ([node("Mul", "x x", "p"), *VARIANCE, node("Div", "x s", "y")], rows()),
    "two-norm": ([node("ReduceL2", "x", "v", axes=[-1]), node("Div", "x v", "y")], rows()),
    "root of a sum of squares": (
        [node("ReduceSumSquare", "x", "v"), node("Sqrt", "v", "s"), node("Div", "x s", "y")],
        rows(),
    ),
    "mean of a large map": ([node("GlobalAveragePool", "x", "y")], np.full((1, 2, 160, 160), 9)),
    "softmax by exponentials": (
        [node("Exp", "x", "p"), node("ReduceSum", "p", "s", keepdims=1), node("Div", "p s", "y")],
        np.full((2, 40), 10.5),
    ),
}


def built(kind: str, elem_type: int) -> tuple[onnx.ModelProto, np.ndarray]:
    nodes, x = KINDS[kind]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(elem_type)
    constants = {"e": np.array(1e-5, dtype), "two": np.array(2, dtype)}
    ends = [value("x", list(x.shape), elem_type)], [value("y", None, elem_type)]
    return model(nodes, *ends, constants), x.astype(dtype)


@pytest.mark.vulkan
@needs_vulkan
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["by the model", "by the device"])
def test_sums_and_squares_beyond_the_range_of_float16_are_float32_on_vulkan(
    tmp_path: Path, kind: str, stored: str
) -> None:
    by_model = stored == "by the model"
    proto, x = built(kind, TensorProto.FLOAT16 if by_model else TensorProto.FLOAT)
    path = save(tmp_path, proto)
    properties = () if by_model else ("VULKAN.precision=f16",)
    report = compile_model(path, tmp_path / "m.hcb", devices="VULKAN", properties=properties, cpu_variant=False)
    assert not report.moved
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"x": x})["y"]
    np.testing.assert_allclose(found.astype(float), run_original(path, {"x": x})[0].astype(float), rtol=1e-2, atol=2e-3)


def test_values_stay_large_until_arithmetic_brings_them_back(tmp_path: Path) -> None:
    nodes = [
        *CENTRED,
        node("Mul", "d d", "p"),
        *VARIANCE,
        node("Div", "d s", "n"),
        node("Mul", "n d", "q"),
        node("Sigmoid", "p", "g"),
        node("Concat", "p g", "c", axis=1),
        node("Relu", "n", "r"),
    ]
    outputs = [value(name) for name in ("q", "c", "r")]
    proto = model(nodes, [value("x", [2, 64])], outputs, {"e": np.array(1e-5, np.float32)})
    graph = import_model(save(tmp_path, proto)).graph
    assert may_exceed(graph) == {"p", "v", "ve", "c"}
