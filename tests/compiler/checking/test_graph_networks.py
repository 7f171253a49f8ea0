"""Networks of graphs, whose edges are indices of nodes: the check draws edges that fit, and results are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import load

LAYERS = """
<ir_version: 9, opset_import: ["" : 18]>
network (float[nodes, 5] x, int64[2, edges] edge_index) => (float[nodes, 3] y, float[1, 3] pooled)
    <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] last = {1}, float unit = {1}>
{
    source = Gather<axis = 0>(edge_index, zero)
    target = Gather<axis = 0>(edge_index, one)
    size = Shape(x)
    count = Slice(size, first, last)
    ends = Shape(target)
    ones = Expand(unit, ends)
    none = ConstantOfShape(count)
    degree = ScatterElements<axis = 0, reduction = "add">(none, target, ones)
    full = Max(degree, unit)
    scale = Unsqueeze(full, last)

    sent = Gather<axis = 0>(x, source)
    column = Unsqueeze(target, last)
    shape1 = Shape(sent)
    index1 = Expand(column, shape1)
    start1 = ConstantOfShape(size)
    sum1 = ScatterElements<axis = 0, reduction = "add">(start1, index1, sent)
    mean1 = Div(sum1, scale)
    both1 = Add(mean1, x)
    linear1 = MatMul(both1, w1)
    h = Relu(linear1)

    again = Gather<axis = 0>(h, source)
    pairs = Unsqueeze(target, last)
    size2 = Shape(h)
    start2 = ConstantOfShape(size2)
    sum2 = ScatterND<reduction = "max">(start2, pairs, again)
    y = MatMul(sum2, w2)
    pooled = ReduceMean<keepdims = 1>(y, first)
}
"""


def network() -> onnx.ModelProto:
    model = onnx.parser.parse_model(LAYERS)
    numbers = np.random.default_rng(0)
    for name, shape in (("w1", (5, 8)), ("w2", (8, 3))):
        values = numbers.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT"])
def test_a_network_of_a_graph_of_any_size_is_checked_and_right(devices: str, tmp_path: Path) -> None:
    model = network()
    report = compile_model(model, tmp_path / "m.hcb", devices=devices, cpu_variant=False, measure=False)
    assert not report.unchecked
    reference = ort.InferenceSession(model.SerializeToString())
    numbers = np.random.default_rng(1)
    with load(tmp_path / "m.hcb") as session:
        for nodes, edges in ((6, 20), (1, 3), (40, 7)):
            feed = {
                "x": numbers.standard_normal((nodes, 5)).astype(np.float32),
                "edge_index": numbers.integers(0, nodes, (2, edges)),
            }
            for got, wanted in zip(session.run(feed).values(), reference.run(None, feed), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
